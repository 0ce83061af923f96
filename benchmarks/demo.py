"""The main job, shown: what NCCL picks, that the real library agrees, where it loses, and what the plugin mends."""

import sys
import tempfile
from pathlib import Path

from tuner import plugin
from tuner.answers import library, picks
from tuner.answers.tuners import with_tuner
from tuner.base.names import Collective, DataType, Op
from tuner.cli.output import human_bytes, print_table, say
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.plugin.table import parse
from tuner.plugin.table.records import Table
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration
from tuner.times.regret import workflow

NCCL = "2.29.7"
SCENARIO = Scenario(nccl=NCCL, machine="dgx-h100", nodes=2)
MEASURED = "b200-8x-64n__2.29.7__together"
LARGE = Scenario(nccl=NCCL, machine="dgx-b200", nodes=16)
REQUEST = Request(Collective.AllReduce, DataType.float32, Op.sum)
SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
NEXT = """\
Now try your own machine, log or results; no GPU is needed:
   nccl-tuner pick allreduce --machine dgx-h100 --nodes 4 --bytes 1K,1M,1G   # nccl-tuner machines: the names
   nccl-tuner explain allreduce --machine dgx-h100 --nodes 4 --bytes 1M      # why, step by step
   nccl-tuner diagnose YOUR.log                                             # what is wrong, from any log or topology
   nccl-tuner accept YOUR-NCCL-TESTS.log --machine dgx-h100                  # whether your cluster is as fast as others
The plugin works in your own job: eval "$(nccl-tuner plugin env --table my.table)". docs/ has the rest."""


def main() -> int:
    agree = show_agreement()
    print()
    obeyed = show_gain()
    print()
    print(NEXT)
    return 0 if agree and obeyed else 1


def show_agreement() -> bool:
    """The emulator's picks, each with whether libnccl's are the same."""
    emulated = picks.from_emulator(SCENARIO, REQUEST, SIZES)
    launched = library.of_sizes(SCENARIO, REQUEST, SIZES, timeout_s=120)
    rows = [
        (
            human_bytes(ours.bytes),
            ours.pick.name,
            f"{ours.pick.time_us:.2f}",
            ours.pick.channels,
            ours.pick.threads,
            "the same" if ours == theirs else "NOT the same",
        )
        for ours, theirs in zip(emulated, launched, strict=True)
    ]
    say(
        f"1. What NCCL picks, offline, and what the real libnccl picks on simulated GPUs: AllReduce on {SCENARIO.title}"
    )
    print_table("", ("size", "pick", "NCCL us", "channels", "threads", "libnccl"), rows)
    agree, cells = emulated == launched, sum(len(answer.cost_us) for answer in launched)
    say(f"   {'All' if agree else 'NOT all'} {cells} cost cells and {len(SIZES)} picks are equal, to the last bit.")
    return agree


def show_gain() -> bool:
    """The shipped point at which NCCL's pick loses, the row that measurements give, and what both make of it."""
    regret = workflow.of_arms(workflow.read(workflow.RunsQuery(tables=(MEASURED,), nodes=LARGE.nodes)))
    (row,) = regret.rows
    size = row.low_bytes
    (judged,) = (one for one in regret.sizes if one.call.bytes == size and row.holds(one))
    fastest = min(judged.others, key=lambda arm: arm.time_us)
    say(f"2. Where that is not the best: {LARGE.title}, measured ({MEASURED})")
    pick_us, gain, surely = judged.pick_us or 0.0, 100 * row.gain_low, 100 * row.surely
    say(f"   AllReduce of {human_bytes(size)}: {judged.emulated_pick} takes {pick_us:.0f} us, {row.choice}")
    say(f"   {fastest.time_us:.0f} us, {gain:.1f} % faster, at least {surely:.1f} % beyond the noise.")
    say(f"   So the measurements give this row of a table: {row.row}")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "my.table")
        parse.write(table, Table((row.decision,)))
        emulated = Selection(with_tuner(LARGE, f"table:{table}").communicator()).pick(REQUEST, size)
        before, after = launched(size, None), launched(size, table)
    rows = [("NCCL alone", *before), ("with the table", *after)]
    print()
    say(f"3. The real libnccl on {LARGE.nodes * 8} simulated GPUs, without our plugin and with it:")
    print_table("", (f"AllReduce of {human_bytes(size)}", "algorithm", "protocol", "channels"), rows)
    (pick,) = emulated.algo_protos()
    same = (pick[0].name, pick[1].name) == after[:2] and int(emulated.channels[0]) == after[2]
    obeyed = same and f"{after[0]}/{after[1]}" == str(row.choice) != f"{before[0]}/{before[1]}"
    say("   The plugin is obeyed, as the emulator says it is." if obeyed else "   THE PLUGIN WAS NOT OBEYED.")
    return obeyed


def launched(size: int, table: Path | None) -> tuple[str, str, int]:
    """Algorithm, protocol and channels of what libnccl launches, with a table where there is one."""
    bare = LARGE.oracle_configuration()
    configuration = OracleConfiguration(
        topology=bare.topology,
        nodes=bare.nodes,
        gpus_per_node=bare.gpus_per_node,
        release=bare.release,
        env={} if table is None else {"NCCL_TUNER_TABLE": str(table)},
        plugin=None if table is None else plugin.path(),
    )
    with Oracle(configuration) as oracle:
        (launch,) = oracle.launch(REQUEST, [size])
    return launch.algorithm.name, launch.protocol.name, launch.channels


if __name__ == "__main__":
    sys.exit(main())
