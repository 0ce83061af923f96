"""SimAI's table of ratios (astra-sim-alibabacloud/inputs/ratio): the part of the links' bandwidth that a size reaches.

Rows are sizes in bytes, columns numbers of nodes; a cell is the bus bandwidth over that of the links: NVLink's of a GPU
in one node, else the lesser of that and of all adapters of a node. The columns of fewer adapters are left empty.
"""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

from tuner.answers.exports.timed import Times, whole, with_nodes
from tuner.base.errors import BadInput, TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.scenario import Scenario

SIZES = tuple(1 << power for power in range(24, 35))  # 16 MiB to 16 GiB
NODES = tuple(1 << power for power in range(8))  # 1 to 128
OTHERS = ("Multi 16", "Multi 32", "Muiti 64", "Multi (NIC)")  # sic


@dataclass(frozen=True, slots=True)
class Links:
    """What links carry in one direction, in GB/s: NVLink's of a GPU, and all adapters of a node together."""

    nvlink_gbs: float
    nics_gbs: float

    def __post_init__(self) -> None:
        if self.nvlink_gbs <= 0 or self.nics_gbs <= 0:
            raise BadInput("bandwidths of links: more than 0 GB/s each")


def table(scenario: Scenario, collective: Collective, links: Links, times: Times) -> tuple[str, list[str]]:
    """The file, and whose the times are; a number of nodes that cannot be answered for has empty cells."""
    request, whose = Request(collective, DataType.float32, Op.sum), []
    columns: list[list[str]] = []
    for nodes in NODES:
        several = with_nodes(scenario, nodes)
        try:
            sizes = [whole(request, several.ranks, size) for size in SIZES]
            busbw_gbs, of_whom = times.busbw_gbs(several, request, sizes)
        except TunerError:
            columns.append([""] * len(SIZES))
            continue
        whose.append(of_whom)
        limit_gbs = links.nvlink_gbs if nodes == 1 else min(links.nvlink_gbs, links.nics_gbs)
        columns.append([f"{each / limit_gbs:.4f}" for each in busbw_gbs])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("Size", *map(_title(scenario), NODES), *OTHERS))
    writer.writerows((size, *cells, *[""] * len(OTHERS)) for size, *cells in zip(SIZES, *columns, strict=True))
    return text.getvalue(), list(dict.fromkeys(whose))


def _title(scenario: Scenario) -> Callable[[int], str]:
    gpus = with_nodes(scenario, 1).ranks

    def title(nodes: int) -> str:
        return "1 Node(NVLinkx)" if nodes == 1 else f"{nodes}Node-{nodes * gpus}GPU(NIC)"

    return title
