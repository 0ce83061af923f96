"""The main job, shown: what NCCL picks, that the real library agrees, and that the plugin changes it."""

import sys
import tempfile
from pathlib import Path

from tuner import plugin
from tuner.answers import library, picks
from tuner.answers.picks import PickAnswer
from tuner.base.names import Collective, DataType, Op
from tuner.cli.output import human_bytes, print_table
from tuner.cli.pick import print_answers
from tuner.emulator.request import Request
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

SCENARIO = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
REQUEST = Request(Collective.AllReduce, DataType.float32, Op.sum)
SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
TABLE = "nccl-tuner-table 1\nallreduce bytes=65536..1048576 nodes=2 -> ring/simple channels=4\n"


def main() -> int:
    emulated = picks.from_emulator(SCENARIO, REQUEST, SIZES)
    print_answers(f"1. Emulator, offline: AllReduce on {SCENARIO.title}", emulated)

    launched = library.of_sizes(SCENARIO, REQUEST, SIZES, timeout_s=120)
    print_answers("2. The real libnccl, on simulated GPUs", launched)
    agree = emulated == launched
    cells = sum(len(answer.cost_us) for answer in launched)
    print(f"   {'All' if agree else 'NOT all'} {cells} cost cells and {len(SIZES)} picks are equal, to the last bit.\n")

    obeyed = show_plugin(launched)
    return 0 if agree and obeyed else 1


def show_plugin(before: list[PickAnswer]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "my.table")
        table.write_text(TABLE)
        bare = SCENARIO.oracle_configuration()
        configuration = OracleConfiguration(
            topology=bare.topology,
            nodes=bare.nodes,
            gpus_per_node=bare.gpus_per_node,
            release=bare.release,
            env={"NCCL_TUNER_TABLE": str(table)},
            plugin=plugin.path(),
        )
        with Oracle(configuration) as oracle:
            after = oracle.launch(REQUEST, SIZES)
    rows, obeyed = [], True
    for old, new, size in zip(before, after, SIZES, strict=True):
        covered = 65536 <= size <= 1048576
        was = (old.pick.algorithm.name, old.pick.protocol.name, old.pick.channels)
        now = (new.algorithm.name, new.protocol.name, new.channels)
        obeyed &= now[:2] == ("Ring", "Simple") if covered else now == was
        rows.append((human_bytes(size), "{}/{} on {}".format(*was), "{}/{} on {}".format(*now), new.kernel))
    print("3. The same libnccl with our plugin and this table:", *TABLE.splitlines(), sep="\n   ")
    print_table("", ("size", "without", "with the plugin", "kernel symbol"), rows)
    print(
        "   The symbol is not the pick: NCCL launches one kernel for several algorithms and protocols, and the work\n"
        "   that the kernel reads says which. The columns before it are what NCCL logs and prepares for the call."
    )
    print("   The row took effect where it holds, and nowhere else." if obeyed else "   THE PLUGIN WAS NOT OBEYED.")
    return obeyed


if __name__ == "__main__":
    sys.exit(main())
