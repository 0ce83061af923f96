"""NCCL's own choices on the GPUs at hand, each against the emulator's for the topology that NCCL dumped there.

    python benchmarks/gpu_own_choices.py --out FILE [--library FILE] [--ranks-per-gpu 2] [--nccl-log FILE]

Five collectives, each called once at every power of two from 8 B to 1 GiB, or --most-bytes, and a few times more to be
timed. Writes FILE as 'nccl-tuner measure' does. Algorithm, protocol and channels are compared; the exit code is 1 where
one differs or a result is wrong, 2 where nothing could be measured.
"""

import argparse
import sys
from pathlib import Path

from tuner.base.errors import BadMeasurement, TunerError
from tuner.base.names import Collective
from tuner.bench.backend import Options
from tuner.bench.loop import SIZES, Settings, Wanted
from tuner.bench.workflow import Plan, gpus, measure
from tuner.times.measured import samples
from tuner.times.verify import model_of

COLLECTIVES = (
    Collective.AllReduce,
    Collective.AllGather,
    Collective.ReduceScatter,
    Collective.Broadcast,
    Collective.Reduce,
)


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


def main() -> int:
    """Entry point of ``python -m``; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--library", type=Path, help="a libnccl.so.2 [default: that of the installed wheel]")
    parser.add_argument("--ranks-per-gpu", type=int, default=1)
    parser.add_argument("--nccl-log", type=Path, help="keep NCCL's log there")
    parser.add_argument("--graphs-below", type=int, default=0, help="nBytes that are timed in CUDA graphs")
    parser.add_argument("--most-bytes", type=int, default=SIZES[-1])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    options = Options(
        given.ranks_per_gpu, given.library, log=given.nccl_log, limit_s=20.0, graphs_below_bytes=given.graphs_below
    )
    settings = Settings(rounds=1, repeats=given.repeats, warmup=0, rounds_per_process=None)
    sizes = [size for size in SIZES if size <= given.most_bytes] if given.most_bytes < SIZES[-1] else None
    plan = Plan(COLLECTIVES, sizes, wanted=Wanted(own_alone=True), settings=settings)
    try:
        if measure(given.out, gpus(options), plan) is None:
            return 0  # a rank other than 0, which has served it
        said, exact = compare(given.out)
    except TunerError as error:
        print(f"own_choices: {error}", file=sys.stderr)
        return 2
    print(said)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
