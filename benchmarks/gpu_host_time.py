"""The cost of a call for the host, and what a tuner plugin adds to it: calls without NCCL's log and without forcing.

    python benchmarks/gpu_host_time.py --out FILE [--plugin none|FILE.so] [--table FILE] [--library FILE]
        [--ranks-per-gpu 2]

Adds a line of JSON to FILE for each size of AllReduce: times of calls in a row outside graphs by CUDA events and by the
host's clock, as nccl-tests times them, of calls in a CUDA graph, and the least that the host took to start one, all us.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.base.errors import MeasuringFailed, TunerError
from tuner.base.names import Collective
from tuner.bench.backend import Options
from tuner.bench.gpu import opening
from tuner.bench.gpu.backend import GpuBackend
from tuner.bench.gpu.process import within
from tuner.bench.gpu.rendezvous import ALONE
from tuner.times.measured.samples import Point

SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
CALLS = 20  # in a row, as nccl-tests does without options
_REPEATS = 5


class UnloggedGpu(GpuBackend):
    """The GPUs without NCCL's log and with another tuner plugin, or none; what ran is not known then."""

    plugin: Mapping[str, str] = {"NCCL_TUNER_PLUGIN": "none"}

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


def main() -> int:
    """Entry point of ``python -m``; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plugin", default="none", help="NCCL_TUNER_PLUGIN [default: none]")
    parser.add_argument("--table", type=Path, help="NCCL_TUNER_TABLE")
    parser.add_argument("--library", type=Path, help="a libnccl.so.2 [default: that of the installed wheel]")
    parser.add_argument("--ranks-per-gpu", type=int, default=1)
    given = parser.parse_args()
    table = {} if given.table is None else {"NCCL_TUNER_TABLE": str(given.table.resolve())}
    UnloggedGpu.plugin = {"NCCL_TUNER_PLUGIN": given.plugin, **table}
    topology = given.out.with_name(f"{given.out.name}.topology.xml")
    options = Options(given.ranks_per_gpu, given.library, topology, limit_s=20.0, graphs_below_bytes=0)
    said = {"ranks_per_gpu": given.ranks_per_gpu, "plugin": given.plugin, "table": table.get("NCCL_TUNER_TABLE")}
    try:
        gpu = opening.open_at(ALONE, options, UnloggedGpu)
        assert isinstance(gpu, UnloggedGpu)
        with given.out.open("a", encoding="utf-8") as file:
            for size in SIZES:
                print(json.dumps({**said, **measured(gpu, size)}), file=file, flush=True)
        gpu.close()
    except (TunerError, OSError) as error:
        print(f"host_time: {error}", file=sys.stderr)
        return 2
    print(f"{given.out}: {len(SIZES)} sizes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
