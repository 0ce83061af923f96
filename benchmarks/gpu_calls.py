"""NCCL's own choices on the GPUs at hand against the emulator's, or what a call and a tuner plugin cost the host.

    python benchmarks/gpu_calls.py own  --out FILE [--library FILE] [--ranks-per-gpu 2] [--nccl-log FILE]
    python benchmarks/gpu_calls.py host --out FILE [--plugin none|FILE.so] [--table FILE]

'own': five collectives, each called once at every power of two from 8 B to 1 GiB, or --most-bytes, and a few times more
to be timed. Writes FILE as 'nccl-tuner measure' does. Algorithm, protocol and channels are compared with what the
emulator says for the topology that NCCL dumped there. 'host': calls without NCCL's log and without forcing. Adds a line
of JSON to FILE for each size of AllReduce: times of calls in a row outside graphs by CUDA events and by the host's
clock, as nccl-tests times them, of calls in a CUDA graph, and the least that the host took to start one, all us.

Exit code 1 where a choice differs or a result is wrong, 2 where nothing could be measured.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tuner.base.errors import BadMeasurement, MeasuringFailed, TunerError
from tuner.base.names import Collective
from tuner.bench.backend import Options
from tuner.bench.gpu import opening
from tuner.bench.gpu.backend import GpuBackend
from tuner.bench.gpu.process import within
from tuner.bench.gpu.rendezvous import ALONE
from tuner.bench.loop import SIZES, Settings, Wanted
from tuner.bench.workflow import Plan, gpus, measure, topology_beside
from tuner.times.measured import samples
from tuner.times.measured.samples import Point
from tuner.times.verify import model_of

HOST_SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
CALLS = 20  # in a row, as nccl-tests does without options
_REPEATS = 5


def compare(path: Path) -> tuple[str, bool]:
    """The lines that say how NCCL's own choices in a file of measurements compare, and whether all are the emulator's.

    BadMeasurement for a file without a communicator, or without such choices.
    """
    measurements = samples.read(path)
    model = model_of(measurements)
    own = [block for block in measurements.blocks if block.requested is None and block.table is None]
    if model is None:
        raise BadMeasurement(f"{path}: the header has no communicator, so that nothing can be compared")
    compared = [(block, model.pick(block.point)) for block in own if block.executed is not None]
    differing = [(block, pick) for block, pick in compared if block.executed != pick]
    lines = [
        f"{block.point.collective.name} {block.point.bytes} B: NCCL ran {block.executed}, the emulator picks {pick}"
        for block, pick in differing
    ]
    wrong = sum(block.wrong > 0 for block in own)
    lines.append(
        f"{len(compared) - len(differing)} of {len(compared)} choices are the emulator's, with channels; NCCL did not "
        f"say {len(own) - len(compared)}; {wrong} results are wrong"
    )
    return "\n".join(lines), bool(compared) and not differing and not wrong


class UnloggedGpu(GpuBackend):
    """The GPUs without NCCL's log and with another tuner plugin, or none; what ran is not known then."""

    plugin: Mapping[str, str] = {"NCCL_TUNER_PLUGIN": "none"}

    @classmethod
    def opened(cls, given: argparse.Namespace, variables: Mapping[str, str]) -> Self:
        """The communicator of a command line, with these variables of NCCL and the plugin."""
        cls.plugin, topology = variables, topology_beside(given.out)
        options = Options(given.ranks_per_gpu, given.library, topology, limit_s=20.0, graphs_below_bytes=0)
        gpu = opening.open_at(ALONE, options, cls)
        assert isinstance(gpu, cls)
        return gpu

    def _instruments(self) -> dict[str, str]:
        return {**self.plugin, "NCCL_TOPO_DUMP_FILE": str(self._options.topology.resolve())}

    def host_clock_us(self, point: Point, calls: int) -> float:
        """Time of one of so many calls in a row, us, by the host's clock. Errors: those of :meth:`run`."""
        deadline_s = time.monotonic() + self._options.limit_s
        return within(self._options.limit_s, "calls in a row", lambda: self._calls.in_a_row(point, calls, deadline_s))


def measured(gpu: UnloggedGpu, size: int) -> dict[str, Any]:
    """All times of one size in us. MeasuringFailed where a result is wrong."""
    point, in_graph = Point(Collective.AllReduce, size), Point(Collective.AllReduce, size, graph=True)
    gpu.run(point, None, 1)
    outside, inside = gpu.run(point, None, _REPEATS), gpu.run(in_graph, None, _REPEATS)
    if outside.wrong or inside.wrong:
        raise MeasuringFailed(f"{outside.wrong + inside.wrong} results are wrong")
    return {
        "bytes": size,
        "events_us": outside.times_us,
        "host_us": outside.host_us,
        "graph_us": inside.times_us,
        "graph_host_us": inside.host_us,
        "host_clock_us": [gpu.host_clock_us(point, CALLS) for _ in range(_REPEATS)],
    }


def own_choices(given: argparse.Namespace) -> tuple[str, bool]:
    """Measures NCCL's own choices into a file, and compares them; "" on a rank other than 0, which has served it."""
    below = given.graphs_below
    options = Options(given.ranks_per_gpu, given.library, log=given.nccl_log, limit_s=20.0, graphs_below_bytes=below)
    settings = Settings(rounds=1, repeats=3, warmup=0, rounds_per_process=None)
    sizes = [size for size in SIZES if size <= given.most_bytes] if given.most_bytes < SIZES[-1] else None
    plan = Plan(tuple(Collective), sizes, wanted=Wanted(own_alone=True), settings=settings)
    return ("", True) if measure(given.out, gpus(options), plan) is None else compare(given.out)


def host_times(given: argparse.Namespace) -> tuple[str, bool]:
    """Adds the lines of all sizes to a file."""
    table = {} if given.table is None else {"NCCL_TUNER_TABLE": str(given.table.resolve())}
    said = {"ranks_per_gpu": given.ranks_per_gpu, "plugin": given.plugin, "table": table.get("NCCL_TUNER_TABLE")}
    gpu = UnloggedGpu.opened(given, {"NCCL_TUNER_PLUGIN": given.plugin, **table})
    with given.out.open("a", encoding="utf-8") as file:
        for size in HOST_SIZES:
            print(json.dumps({**said, **measured(gpu, size)}), file=file, flush=True)
    gpu.close()
    return f"{given.out}: {len(HOST_SIZES)} sizes", True


def main() -> int:
    """Runs what the command line names; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("own", "host"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--library", type=Path, help="a libnccl.so.2 [default: that of the installed wheel]")
    parser.add_argument("--ranks-per-gpu", type=int, default=1)
    parser.add_argument("--nccl-log", type=Path, help="keep NCCL's log there")
    parser.add_argument("--graphs-below", type=int, default=0, help="nBytes that are timed in CUDA graphs")
    parser.add_argument("--most-bytes", type=int, default=SIZES[-1])
    parser.add_argument("--plugin", default="none", help="NCCL_TUNER_PLUGIN [default: none]")
    parser.add_argument("--table", type=Path, help="NCCL_TUNER_TABLE")
    given = parser.parse_args()
    try:
        said, good = {"own": own_choices, "host": host_times}[given.what](given)
    except (TunerError, OSError) as error:
        print(f"gpu_calls: {error}", file=sys.stderr)
        return 2
    if said:
        print(said)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
