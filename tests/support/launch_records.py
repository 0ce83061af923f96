"""What libnccl launched, as it stands in tests/golden/launches.json.gz, and the calls that it was asked for."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.conformance import launched_values
from tuner.oracle.conformance.check import reachable
from tuner.oracle.launches import LaunchInFull, RecordedKernel
from tuner.oracle.messages import Batch, KernelWorks
from tuner.scenario import Scenario

FILE = Path(__file__).parents[1] / "golden" / "launches.json.gz"
EDGES = FILE.with_name("launches_at_edges.json.gz")
OLD_AT_EDGES = ("2.19.3", "2.22.3")  # which have rules of their own for some of the cases alone
RELEASES_AT_EDGES = (*OLD_AT_EDGES, "2.28.9", "2.32.3")
FEW_CHANNELS = {"NCCL_MAX_CTAS": "3", "NCCL_MAX_NCHANNELS": "3"}
LARGE, ODD = 200 << 20, 1_000_003
COLLNET, GATHERING = {"NCCL_COLLNET_ENABLE": "1"}, (Collective.AllGather, Collective.ReduceScatter)

KINDS = (
    (DataType.float32, Op.sum),
    (DataType.bfloat16, Op.avg),
    (DataType.int32, Op.max),
    (DataType.float16, Op.min),
    (DataType.int8, Op.avg),
)
# Algorithm, nodes, GPUs of each, more settings, collectives.
CASES: tuple[tuple[Algorithm, int, int, dict[str, str], tuple[Collective, ...]], ...] = (
    (Algorithm.Ring, 2, 2, {"NCCL_PROTO": "LL"}, tuple(Collective)),
    (Algorithm.Ring, 2, 2, {"NCCL_PROTO": "LL128"}, tuple(Collective)),
    (Algorithm.Ring, 2, 2, {"NCCL_PROTO": "Simple"}, tuple(Collective)),
    (Algorithm.Tree, 3, 2, {"NCCL_PROTO": "LL128"}, (Collective.AllReduce,)),
    (Algorithm.Tree, 3, 2, {"NCCL_PROTO": "Simple"}, (Collective.AllReduce,)),
    (Algorithm.NVLS, 1, 8, {}, (Collective.AllReduce, *GATHERING)),
    (Algorithm.NVLS, 2, 8, COLLNET, (Collective.AllReduce,)),
    (Algorithm.NVLSTree, 4, 8, {}, (Collective.AllReduce,)),
    (Algorithm.CollNetDirect, 2, 8, COLLNET, (Collective.AllReduce, *GATHERING)),
    (Algorithm.CollNetChain, 2, 8, COLLNET, (Collective.AllReduce,)),
    (Algorithm.PAT, 5, 1, {"NCCL_PAT_ENABLE": "1"}, GATHERING),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A communicator and its calls, each on its own."""

    name: str
    scenario: Scenario
    operations: tuple[Operation, ...]


def cases(nccl: str) -> Iterator[Case]:
    """Those that the release can run."""
    for number, (algorithm, nodes, gpus, more, collectives) in enumerate(CASES):
        settings = {**FEW_CHANNELS, "NCCL_ALGO": algorithm.name, **more}
        scenario = Scenario(nccl, nodes, machine="dgx-h100", gpus_per_node=gpus, collnet=True, environment=settings)
        selection = Selection(scenario.communicator())
        kinds = [_kind(selection, each, number + each) for each in collectives]
        operations = tuple(
            Operation(kind, reachable(kind, scenario.ranks, nbytes))
            for kind in kinds
            if kind is not None
            for nbytes in (ODD, LARGE)
        )
        if operations:
            yield Case(f"{algorithm.name} {' '.join(more.values())}".strip(), scenario, operations)


def edges(nccl: str) -> Iterator[Case]:
    """Calls at the edges of rules that :func:`cases` go past, on other machines and with all channels."""
    algorithm = {"NVLS": {"NCCL_ALGO": "NVLS", **COLLNET}, "NVLSTree": {"NCCL_ALGO": "NVLSTree"}}
    scenarios = {
        # Fewer channels than NVLS on one node has: bounds.fewer_between_nodes, from two nodes on.
        "NVLS between two nodes": Scenario(nccl, 2, machine="dgx-b200", collnet=True, environment=algorithm["NVLS"]),
        # Below chunk_sizes.SlowNetworks.slow_gbs, so chunks of slow_bytes.
        "NVLS over slow adapters": Scenario(
            nccl, 2, machine="dgx-h100", hardware={"nic-gbps": "100"}, collnet=True, environment=algorithm["NVLS"]
        ),
        # 16 local ranks of Blackwell, the least with smaller chunks in chunk_sizes.TunedForBlackwell.
        "NVLSTree of 16 local ranks": Scenario(
            nccl, 2, machine="gb200-nvl72", trays=4, environment=algorithm["NVLSTree"]
        ),
        # 8 local ranks whose adapters are near, the most with smaller chunks below 96 GB/s.
        "NVLSTree of 8 local ranks": Scenario(nccl, 2, machine="dgx-b200", environment=algorithm["NVLSTree"]),
        # Rings of 45 GB/s, which are not more than init.fast_on_hopper asks for more channels.
        "Ring of 45 GB/s": Scenario(
            nccl, 2, machine="dgx-h100", hardware={"nic-gbps": "360", "nics": "6"}, environment={"NCCL_ALGO": "Ring"}
        ),
    }
    if nccl in OLD_AT_EDGES:
        # Chunks that channel_work.ChunksInTurns halves down to 32 KiB.
        simple = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}
        scenarios = {
            "Ring of 45 GB/s": scenarios["Ring of 45 GB/s"],
            # More than that, and Hopper, so twice the 12 channels: init.double_on_fast_hopper_rings_only.
            "Ring of 48 GB/s": Scenario(
                nccl, 2, machine="dgx-h100", hardware={"nics": "6"}, environment={"NCCL_ALGO": "Ring"}
            ),
            "Short chunks of Tree": Scenario(nccl, 2, machine="dgx-h100", environment=simple),
        }
    kind = Request(Collective.AllReduce, DataType.float32, Op.sum)
    for name, scenario in scenarios.items():
        yield Case(name, scenario, tuple(Operation(kind, nbytes) for nbytes in (1 << 20, LARGE, 1 << 30)))


def _kind(selection: Selection, collective: Collective, first: int) -> Request | None:
    """A call of the first of the types, from a number on and round, that the forced algorithm does."""
    forced = Algorithm[selection.communicator.environment.values["NCCL_ALGO"]]
    kinds = [Request(collective, *KINDS[(first + further) % len(KINDS)]) for further in range(len(KINDS))]
    return next((kind for kind in kinds if selection.usable(kind) and _picks(selection, kind) is forced), None)


def _picks(selection: Selection, kind: Request) -> Algorithm:
    """Up to 2.23 NCCL takes Ring where the forced algorithm cannot do a call."""
    return Algorithm(selection.pick(kind, reachable(kind, selection.communicator.ranks, ODD)).algorithm[0])


def written(launch: LaunchInFull) -> dict[str, Any]:
    """As JSON has it; addresses are left out."""
    names = [name for name in launch.operations.dtype.names or () if name in WANTED]
    return {
        "kernels": [
            {
                "name": kernel.name,
                "blocks": kernel.channels,
                "threads": kernel.threads,
                "works": {
                    channel: [
                        {"type": batch.type, "function": batch.function, "works": list(map(_plain, batch.works))}
                        for batch in batches
                    ]
                    for channel, batches in kernel.works.channels.items()
                },
            }
            for kernel in launch.kernels
        ],
        "operations": {name: launch.operations[name].tolist() for name in names},
        "patterns": {number: launch.patterns[number] for number in set(launch.operations["pattern"].tolist())},
    }


ADDRESSES = ("sendbuff", "recvbuff", "sendbuffOffset", "recvbuffOffset", "sendbuffRmtAddrs", "recvbuffRmtAddrs")
WANTED = {"channelId", "pattern", "protocol", "dtype", "root", "redOp", "coll", "collAPI", "algorithm", "nPeers", "reg"}
WANTED |= launched_values.OF_OPERATION.keys()


def _plain(struct: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in struct.items() if name not in ADDRESSES}


def read(found: dict[str, Any]) -> LaunchInFull:
    """What :func:`written` wrote."""
    columns = found["operations"]
    operations = np.zeros(len(columns["channelId"]), [(name, np.int64) for name in columns])
    for name, values in columns.items():
        operations[name] = values
    return LaunchInFull(
        tuple(
            RecordedKernel(kernel["name"], kernel["blocks"], kernel["threads"], KernelWorks(_works(kernel["works"])))
            for kernel in found["kernels"]
        ),
        operations,
        {int(number): name for number, name in found["patterns"].items()},
    )


def _works(found: dict[str, Any]) -> dict[int, tuple[Batch, ...]]:
    return {
        int(channel): tuple(Batch(each["type"], each["function"], False, tuple(each["works"])) for each in batches)
        for channel, batches in found.items()
    }


def load(file: Path = FILE) -> dict[str, Any]:
    """The content of a file of launches."""
    found: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return found


def save(found: dict[str, Any], file: Path = FILE) -> None:
    """Replaces a file of launches; the same content gives the same bytes."""
    file.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))
