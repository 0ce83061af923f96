"""Writes tables/public_runs.json, the curves that runs are compared with, from the tables of tables/measured.

Run from the repository's root: python -m tests.scripts.write_public_runs
"""

from collections.abc import Iterator
from pathlib import Path

from tuner.answers.changes import changed
from tuner.base.errors import TunerError
from tuner.machine import catalogue, gpus
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.times import measured
from tuner.times.acceptance import curves_of_runs, public_runs
from tuner.times.acceptance.public_runs import PublicCurve
from tuner.times.measured.checks import nearest_release
from tuner.times.measured.samples import Measurements

# For tables that name no release: what was usual when most of them were measured.
USUAL = "2.27.5"
# For tables that name no machine: of those with the GPU, as many of a node and such adapters, these come first.
PREFERRED = ("dgx-h100", "dgx-h200", "dgx-a100", "dgx-b200")


def scenario_of(table: Measurements) -> Scenario | None:
    """The machine of a table, or one with its GPUs and its adapters; None where there is none."""
    header = table.header
    nccl = nearest_release(header.nccl)[0] if header.nccl else USUAL
    if header.machine:
        scenario = describe(header.machine, nccl=nccl)
    else:
        count = max(row.gpus_per_node for row in table.blocks)
        such = [
            name
            for name in (*PREFERRED, *catalogue.names())
            if catalogue.load(name).gpus_per_node == count
            and catalogue.load(name).trays is None  # which trays are of one domain, only a named machine says
            and header.gpu
            and gpus.is_product(header.gpu, catalogue.load(name).gpu)
        ]
        if not such:
            return None
        scenario = describe(such[0], nccl=nccl)
    adapters, nets = header.adapters, catalogue.load(scenario.machine or "").topology.nets
    speeds = {net.speed_mbps // 1000 for net in nets}
    if adapters.count is not None and adapters.count < len(nets) and not header.machine:
        scenario = changed(scenario, (f"nics={adapters.count}",))
        nets = nets[: adapters.count]
    if adapters.gbps is not None and adapters.count == len(nets) and speeds != {adapters.gbps}:
        scenario = changed(scenario, (f"nic-gbps={adapters.gbps:g}",))
    return scenario


def shipped_curves() -> Iterator[PublicCurve]:
    """The curves of all tables that ship."""
    for name in measured.names():
        table = measured.load(name)
        try:
            scenario = scenario_of(table)
        except TunerError:
            continue
        if scenario is not None:
            yield from curves_of_runs.of_table(table, scenario)


def main() -> None:
    """Writes the file."""
    text = public_runs.text_of(list(shipped_curves()))
    Path("tables", public_runs.FILE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
