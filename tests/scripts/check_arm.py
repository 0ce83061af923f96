"""The libnccl for aarch64 against that for x86-64, release by release, and docs/arm.toml from that.

    python -m tests.scripts.check_arm FOLDER              every release with FOLDER/RELEASE.so
    python -m tests.scripts.check_arm FOLDER 2.28.9       these; what the file says of others stays

FOLDER holds each release's libnccl.so.2 for aarch64, as tests/scripts/fetch_arm.py fetches them. Needs
aarch64-linux-gnu-gcc, its objdump, and qemu-aarch64. Exit code 1 where a constant, the default of a variable, a
bandwidth or a pick differs, or a latency by more than its last bit.
"""

import contextlib
import json
import random
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import numpy as np

from tests.support import both_builds
from tests.support.both_builds import Build, Drawn, Model
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Protocol
from tuner.machine.graphs import EMPTY, release_key
from tuner.oracle import library
from tuner.scenario import Scenario
from tuner.scenario.resolved import ResolvedScenario

FILE = Path(__file__).parents[2] / "docs" / "arm.toml"
LATENCIES = Path(__file__).parents[1] / "golden" / "arm" / "latencies.json"
RECORDED = "2.28.9"  # the release whose latencies LATENCIES has, of
RECORDED_MACHINES = {"alps": (1, 2, 5, 13, 100), "gh200-4x": (2, 3, 7, 12, 33, 48, 64), "gb200-nvl72": (2, 3)}
MACHINES = {"alps": (1, 2, 4, 16), "gh200-4x": (1, 2, 4, 16), "gb200-nvl72": (1, 2, 4)}  # of the last, domains
SEED, COMMUNICATORS = 18, 100
COMPARED = ("latencies", "bandwidths", "times", "picks")
COUNTS = ("communicators", *(f"{what}{which}" for what in COMPARED for which in ("", "_different")))
WRONG = ("constants_different", "variables_different", "bandwidths_different", "picks_different", "more_than_last_bit")


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("names", nargs=-1, metavar="[RELEASE]...")
def main(folder: Path, names: tuple[str, ...]) -> None:
    if missing := both_builds.missing_tools():
        raise click.ClickException(f"not installed: {', '.join(missing)}")
    found, fine = read(), True
    for name in names or sorted((file.stem for file in folder.glob("*.so")), key=release_key):
        with tempfile.TemporaryDirectory() as programs:
            x86, aarch64 = both_builds.builds(library.find(name).path, folder / f"{name}.so", Path(programs))
            found[name] = compare(name, x86, aarch64)
            if name == RECORDED:
                record(aarch64)
        fine = fine and not any(found[name][key] for key in WRONG)
        click.echo(f"{name}: {found[name]}", err=True)
        write(found)
    sys.exit(0 if fine else 1)


def compare(name: str, x86: Build, aarch64: Build) -> dict[str, Any]:
    """What the file says of a release."""
    here, there = both_builds.constants(x86.library), both_builds.constants(aarch64.library)
    named = {symbol for symbol in here.keys() | there.keys() if not symbol.startswith("CSWTCH")}  # made by the compiler
    unset, unset_there = both_builds.defaults(x86), both_builds.defaults(aarch64)
    variables = unset.keys() | unset_there.keys()
    row: dict[str, Any] = {
        "sha256": sha256(aarch64.library.read_bytes()).hexdigest(),
        "constants": len(named),
        "constants_bytes": sum(len(here.get(symbol, b"")) for symbol in named),
        "constants_different": sum(here.get(symbol) != there.get(symbol) for symbol in named),
        "variables": len(variables),
        "variables_different": sum(unset.get(variable) != unset_there.get(variable) for variable in variables),
        "fused": dict(sorted(both_builds.fused(aarch64.library).items())),
    }
    return row | models(name, x86, aarch64)


def models(name: str, x86: Build, aarch64: Build) -> dict[str, int]:
    """Tables and picks of both builds, where a release has one function for them (before 2.31)."""
    row = dict.fromkeys((*COUNTS, "more_than_last_bit"), 0)
    if "ncclTopoTuneModel" not in x86.symbols.functions:
        return row
    algorithms, numbers = x86.symbols.comm.members["latencies"].dims[1], random.Random(SEED)
    drawn = [both_builds.draw(algorithms, numbers) for _ in range(COMMUNICATORS)] + of_machines(name, algorithms)
    for here, there in zip(both_builds.model(x86, drawn), both_builds.model(aarch64, drawn), strict=True):
        one, other = picks(here), picks(there)
        row["communicators"] += 1
        row["latencies"] += int((here.latencies_us != 0).sum())
        row["latencies_different"] += int((here.latencies_us != there.latencies_us).sum())
        row["more_than_last_bit"] += int((last_bits(here.latencies_us, there.latencies_us) > 1).sum())
        row["bandwidths"] += int((here.bandwidths_gbs != 0).sum())
        row["bandwidths_different"] += int((here.bandwidths_gbs != there.bandwidths_gbs).sum())
        row["times"] += int((here.times_us > 0).sum())
        row["times_different"] += int((here.times_us != there.times_us).sum())
        row["picks"] += one.size
        row["picks_different"] += int((one != other).sum())
    return row


def last_bits(here: np.ndarray, there: np.ndarray) -> Any:
    """How many floats lie between the two."""
    return np.abs(here.view("<i4").astype(np.int64) - there.view("<i4"))


def picks(model: Model) -> np.ndarray:
    """The combination with the least time [collective, size], of those that have a bandwidth."""
    times = np.moveaxis(np.where(model.times_us > 0, model.times_us, np.inf), -1, 1)
    return times.reshape(*times.shape[:2], times.shape[2] * times.shape[3]).argmin(axis=-1) if times.size else times


def of_machines(name: str, algorithms: int) -> list[Drawn]:
    """The catalogue's machines with ARM processors, as the emulator has them, where the release runs on them."""
    made = []
    for machine, each in MACHINES.items():
        for nodes in each:
            with contextlib.suppress(BadInput):
                made.append(of_machine(name, machine, nodes, algorithms))
    return made


def record(aarch64: Build) -> None:
    """Writes the latencies of a few communicators as the build for aarch64 has them."""
    each = [(machine, nodes) for machine, several in RECORDED_MACHINES.items() for nodes in several]
    made = both_builds.model(aarch64, [of_machine(RECORDED, *one, len(Algorithm)) for one in each])
    lines = (
        json.dumps(
            {"machine": machine, "nodes": nodes, "latencies_us": table.latencies_us.astype("<f4").tobytes().hex()}
        )
        for (machine, nodes), table in zip(each, made, strict=True)
    )
    LATENCIES.parent.mkdir(exist_ok=True)
    LATENCIES.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def recorded() -> Iterator[tuple[str, int, np.ndarray]]:
    """Machine, nodes and latencies [collective, algorithm, protocol], us, as :func:`record` wrote them."""
    for one in json.loads(LATENCIES.read_text()):
        table = np.frombuffer(bytes.fromhex(one["latencies_us"]), "<f4")
        yield one["machine"], one["nodes"], table.reshape(-1, len(Algorithm), len(Protocol))


def of_machine(name: str, machine: str, nodes: int, algorithms: int) -> Drawn:
    """A communicator of one machine, all GPUs."""
    made = ResolvedScenario(Scenario(name, nodes, machine=machine)).views[0]
    graphs = [made.graphs.get(algorithm, EMPTY) for algorithm in list(Algorithm)[:algorithms]]
    comm = {"nNodes": made.nodes, "nRanks": made.ranks, "rank": 1, "nChannels": made.graphs[Algorithm.Ring].channels}
    comm |= {"cpuArch": both_builds.ARM, "cpuVendor": 0, "minCompCap": made.min_comp_cap}
    comm["maxTreePattern"] = 0 if made.tree_pattern is None else int(made.tree_pattern)
    return Drawn(
        comm,
        [
            {
                "nChannels": graph.channels,
                "bwIntra": graph.bw_intra_gbs,
                "bwInter": graph.bw_inter_gbs,
                "latencyInter": graph.latency_inter_us,
                "typeIntra": both_builds.NVLINK if graph.type_intra == "NVL" else both_builds.PCI,
                "typeInter": both_builds.PCI,
                "sameChannels": int(graph.same_channels),
                "pattern": 0 if graph.pattern is None else int(graph.pattern),
            }
            for graph in graphs
        ],
    )


def read() -> dict[str, Any]:
    """What the file says of each release."""
    return tomllib.loads(FILE.read_text()) if FILE.is_file() else {}


def write(found: dict[str, Any]) -> None:
    lines = [
        "# Autogenerated by tests/scripts/check_arm.py; do not edit. The libnccl for aarch64 against that for x86-64."
    ]
    for name in sorted(found, key=release_key):
        lines += ["", f'["{name}"]', *(f"{key} = {_toml(value)}" for key, value in found[name].items())]
    FILE.write_text("\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {each}' for key, each in value.items())} }}"
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    main()
