"""What libnccl answered, as `tests/scripts/record_golden.py` recorded it in `tests/golden`.

A machine has one file, `<machine>.npz`, a zip of .npy arrays, LZMA inside: a column that two releases share costs a few
bytes. R releases, H shapes, 5 collectives, S sizes, A = 7 algorithms, 3 protocols, no pickle:

    releases        [R]         text, oldest first
    libnccl_sha256  [R]         text, of the libnccl.so.2 that answered
    topology_sha256 []          text, of the machine's topology.xml
    algorithms      [R]         how many of the A the release has; beyond them everything is 0
    shapes          [H, 2]      nodes, GPUs of each
    sizes_bytes     [H, 5, S]   NCCL's nBytes, float32 and sum throughout
    and with [R, H] in front, what Answers says
"""

import hashlib
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner import release
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.machine.graphs import release_key
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, sizes_bytes
from tuner.scenario import Scenario

FOLDER = Path(__file__).parents[1] / "golden"
NODES = (1, 2, 3, 4, 8)
MOST_RANKS = 64  # of a shape: one of more ranks has fewer GPUs per node instead
SIZES = 100  # of a collective
CELLS = (len(Algorithm), len(Protocol))


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What one release says on one machine; every array starts with an axis of shapes [H]."""

    channels: NDArray[np.int32]  # [2] of the collectives, and of NVLS
    latency_us: NDArray[np.float32]  # [5, A, 3]
    bandwidth_gbs: NDArray[np.float32]  # [5, A, 3]
    max_threads: NDArray[np.int32]  # [A, 3]
    thread_thresholds_bytes: NDArray[np.int64]  # [A, 3]
    cost_us: NDArray[np.float32]  # [5, S, A, 3] the cost table, negative where ignored
    picks: NDArray[np.uint16]  # [5, S, 4] algorithm, protocol, channels, threads


NAMES = tuple(field.name for field in fields(Answers))


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """Everything recorded of one machine."""

    shapes: NDArray[np.int32]
    sizes_bytes: NDArray[np.int64]
    topology_sha256: str
    libnccl_sha256: dict[str, str]  # by release
    answers: dict[str, Answers]  # by release
    algorithms: dict[str, int]  # by release


def machines() -> list[str]:
    """Those that libnccl was asked about; a machine may be in the catalogue without."""
    return sorted(file.stem for file in FOLDER.glob("*.npz"))


def topology_sha256(machine: str) -> str:
    return hashlib.sha256(catalogue.load(machine).topology_xml.encode()).hexdigest()


def releases(machine: str) -> list[str]:
    """Those that run there."""
    return [name for name in release.names() if name not in catalogue.load(machine).crashes]


def shapes(machine: str) -> NDArray[np.int32]:
    """Nodes and GPUs of each. A machine without network adapters cannot have several nodes."""
    loaded = catalogue.load(machine)
    most = loaded.gpus_per_node
    if not loaded.topology.nets:
        return np.array([(1, most)], np.int32)
    whole = [(nodes, min(most, MOST_RANKS // nodes)) for nodes in NODES]
    return np.array(sorted({*whole, (2, max(most // 2, 1)), (4, 1)}), np.int32)  # PAT wants one GPU per node


def sizes(shapes: NDArray[np.int32]) -> NDArray[np.int64]:
    """For each shape and collective SIZES different ones, from the smallest there is to 16 GiB."""
    every = [[sizes_bytes(request, nodes * gpus) for request in ALL_COLLECTIVES] for nodes, gpus in shapes.tolist()]
    return np.array([[[row[i] for i in _spread(len(row))] for row in rows] for rows in every], np.int64)


def _spread(length: int) -> Iterator[int]:
    return (position * (length - 1) // (SIZES - 1) for position in range(SIZES))


def cases(release: str, machine: str, shapes: NDArray[np.int32]) -> Iterator[Scenario]:
    return (Scenario(nccl=release, machine=machine, nodes=n, gpus_per_node=gpus) for n, gpus in shapes.tolist())


def from_library(scenario: Scenario, sizes: NDArray[np.int64], timeout_s: float) -> tuple[dict[str, Any], int, str]:
    """One shape asked of libnccl: the arrays of Answers, the release's number of algorithms, the library's sha256."""
    with Oracle(scenario.oracle_configuration(), timeout_s) as oracle:
        cost_us, picks = [], []
        for request, row in zip(ALL_COLLECTIVES, sizes.tolist(), strict=True):
            cost_us.append(oracle.costs(request, row))
            picks.append(
                [(one.algorithm, one.protocol, one.channels, one.threads) for one in oracle.launch(request, row)]
            )
        tables, facts = oracle.tables, oracle.facts
    arrays: dict[str, NDArray[Any]] = {
        "channels": np.array([facts.n_channels, facts.nvls_channels], np.int32),
        "latency_us": tables.latency_us,
        "bandwidth_gbs": tables.bandwidth_gbs,
        "max_threads": tables.max_threads,
        "thread_thresholds_bytes": tables.thread_thresholds_bytes,
        "cost_us": np.stack(cost_us),
        "picks": np.array(picks, np.uint16),
    }
    algorithms = len(tables.max_threads)
    return {name: _cut(name, array, algorithms) for name, array in arrays.items()}, algorithms, facts.library_sha256


def from_emulator(scenario: Scenario, sizes: NDArray[np.int64], algorithms: int) -> dict[str, Any]:
    """The same of the emulator."""
    selection = Selection(scenario.communicator())
    cost_us, picks = [], []
    for request, row in zip(ALL_COLLECTIVES, sizes, strict=True):
        cost_us.append(selection.cost_table(request, row))
        picked = selection.pick(request, row)
        picks.append(np.stack([picked.algorithm, picked.protocol, picked.channels, picked.threads], axis=1))
    tables, communicator = selection.tables, selection.communicator
    arrays: dict[str, NDArray[Any]] = {
        "channels": np.array([communicator.channels, communicator.nvls_channels]),
        "latency_us": tables.latency_us,
        "bandwidth_gbs": tables.bandwidth_gbs,
        "max_threads": tables.max_threads,
        "thread_thresholds_bytes": tables.thread_thresholds_bytes,
        "cost_us": np.stack(cost_us),
        "picks": np.stack(picks),
    }
    return {name: _cut(name, array, algorithms) for name, array in arrays.items()}


def _cut(name: str, array: NDArray[Any], algorithms: int) -> NDArray[Any]:
    """Zeros for the algorithms that the release has not."""
    if name in ("channels", "picks"):
        return array
    full = np.zeros((*array.shape[:-2], *CELLS), array.dtype)
    full[..., :algorithms, :] = array[..., :algorithms, :]
    return full


def differences(golden: Golden, release: str, shape: int, scenario: Scenario) -> list[str]:
    """What the emulator answers otherwise than libnccl did, for one of the shapes."""
    sizes, answers = golden.sizes_bytes[shape], golden.answers[release]
    ours = from_emulator(scenario, sizes, golden.algorithms[release])
    return [line for name in NAMES for line in mismatches(name, ours[name], getattr(answers, name)[shape], sizes)]


def mismatches(name: str, emulator: NDArray[Any], libnccl: NDArray[Any], sizes: NDArray[np.int64]) -> list[str]:
    """Every element of one array that is not the same, floats by their bits, with both values."""
    if emulator.shape != libnccl.shape:
        return [f"{name}: emulator has shape {emulator.shape}, libnccl {libnccl.shape}"]
    floats = libnccl.dtype.kind == "f"
    differ = emulator.view(np.uint32) != libnccl.view(np.uint32) if floats else emulator != libnccl
    places = map(tuple, np.argwhere(differ))
    return [f"{_where(name, at, sizes)}: emulator {emulator[at]!s}, libnccl {libnccl[at]!s}" for at in places]


def _where(name: str, at: tuple[int, ...], sizes: NDArray[np.int64]) -> str:
    if name == "channels":
        return ("channels", "NVLS channels")[at[0]]
    if name == "picks":
        collective, column, what = at
        what_name = ("algorithm", "protocol", "channels", "threads")[what]
        return f"{what_name} of {Collective(collective).name} {sizes[collective, column]} B"
    algo_proto = f"{Algorithm(at[-2]).name}/{Protocol(at[-1]).name}"
    size = f" {sizes[at[:2]]} B" if name == "cost_us" else ""
    return f"{name} of {Collective(at[0]).name if len(at) > 2 else 'all'}{size} {algo_proto}"


def read(machine: str) -> Golden:
    """What is recorded of a machine; nothing of one without a file."""
    data = FOLDER / f"{machine}.npz"
    if not data.is_file():
        found = shapes(machine)
        return Golden(found, sizes(found), topology_sha256(machine), {}, {}, {})
    with np.load(data, allow_pickle=False) as arrays:
        loaded = {name: arrays[name] for name in arrays.files}
    releases = loaded["releases"].tolist()
    return Golden(
        shapes=loaded["shapes"],
        sizes_bytes=loaded["sizes_bytes"],
        topology_sha256=str(loaded["topology_sha256"]),
        libnccl_sha256=dict(zip(releases, loaded["libnccl_sha256"].tolist(), strict=True)),
        answers={r: Answers(**{name: loaded[name][at] for name in NAMES}) for at, r in enumerate(releases)},
        algorithms=dict(zip(releases, loaded["algorithms"].tolist(), strict=True)),
    )


def write(machine: str, golden: Golden) -> None:
    """The file, replaced at once."""
    releases = sorted(golden.libnccl_sha256, key=release_key)
    arrays: dict[str, NDArray[Any]] = {
        "releases": np.array(releases),
        "libnccl_sha256": np.array([golden.libnccl_sha256[release] for release in releases]),
        "topology_sha256": np.array(golden.topology_sha256),
        "algorithms": np.array([golden.algorithms[release] for release in releases], np.int32),
        "shapes": golden.shapes,
        "sizes_bytes": golden.sizes_bytes,
        **{name: np.stack([getattr(golden.answers[release], name) for release in releases]) for name in NAMES},
    }
    FOLDER.mkdir(exist_ok=True)
    data = FOLDER / f"{machine}.npz"
    with zipfile.ZipFile(data.with_suffix(".part"), "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # without a date: the same answers give the same file
            entry.compress_type = zipfile.ZIP_LZMA
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    os.replace(data.with_suffix(".part"), data)
