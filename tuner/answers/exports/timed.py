"""Times of NCCL's picks for an export, and who predicts them."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import TimesWanted
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError, one_of
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import bus_gbs

BY_NCCL = "predicted by NCCL's own model"
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Times:
    """Where an export's times come from: NCCL if ``wanted`` is None, else a calibration."""

    wanted: TimesWanted | None = None

    def of(self, scenario: Scenario, request: Request, sizes: Sequence[int]) -> tuple[Array, str]:
        """Times in us, [size], of NCCL's picks for these sizes (nBytes), and who predicts them. Errors: NoAlgorithm,
        BadInput.
        """
        selection = Selection(scenario.communicator())
        if self.wanted is None:
            return selection.pick(request, sizes).time_us.astype(np.float64), BY_NCCL
        calls = calibrated.calls(scenario, selection, request, sizes, self.wanted.calibration)
        return np.asarray(calls.time_us, np.float64), f"calibrated to measured times, {calls.calibration}"

    def busbw_gbs(self, scenario: Scenario, request: Request, sizes: Sequence[int]) -> tuple[Array, str]:
        """Bus bandwidths in GB/s [size] as nccl-tests defines them, and who predicts their times."""
        times_us, whose = self.of(scenario, request, sizes)
        return np.asarray(bus_gbs(request.collective, np.array(sizes), times_us, scenario.ranks)), whose


def head(scenario: Scenario, whose: Iterable[str]) -> str:
    """The line in which an export describes itself."""
    return f"{scenario.heading}; times {'; '.join(dict.fromkeys(whose))}"


def with_nodes(scenario: Scenario, nodes: int) -> Scenario:
    """The scenario with this many nodes of the same machine."""
    return replace(scenario, nodes=nodes)


def whole(request: Request, ranks: int, size: int) -> int:
    """The smallest size, in bytes, that is at least ``size`` and possible for the collective."""
    unit = request.unit_bytes(ranks)
    return -(-size // unit) * unit


SIZES = tuple(1 << power for power in range(24, 35))  # 16 MiB to 16 GiB
NODES = tuple(1 << power for power in range(8))  # 1 to 128
OTHERS = ("Multi 16", "Multi 32", "Muiti 64", "Multi (NIC)")  # sic


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bandwidth of links in one direction, in GB/s: NVLink's of a GPU, and all adapters of a node together."""

    nvlink_gbs: float
    nics_gbs: float

    def __post_init__(self) -> None:
        if self.nvlink_gbs <= 0 or self.nics_gbs <= 0:
            raise BadInput("the bandwidths of links have to be more than 0 GB/s")


def table(scenario: Scenario, collective: Collective, links: LinkRates, times: Times) -> tuple[str, list[str]]:
    """Returns the file's text, and who predicts its times. Cells are empty for numbers of nodes without a time."""
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


OPCODES = {
    Collective.AllReduce: "all-reduce",
    Collective.AllGather: "all-gather",
    Collective.ReduceScatter: "reduce-scatter",
}
ELEMENT_BYTES = 4  # float32, which the generator always takes

ENTRY = """\
    entries {{
      instruction {{
        name: "_"
        opcode: "{opcode}"
        shape {{
          element_type: F32
          dimensions: {elements}
          layout {{ minor_to_major: 0 tail_padding_alignment_in_elements: 1 }}
          is_dynamic_dimension: false
        }}
{dimensions}        channel_id: 1
        use_global_device_ids: true
{devices}
      }}
      network_throughput_bytes_per_sec: {throughput}
    }}
"""
DEVICES = """\
          num_replica_groups: 1
          num_devices_per_group: {ranks}
          iota_reshape_dims: {ranks}
          iota_transpose_perm: 0"""
# Newer XLA reads the list of devices from a field of its own.
OLDER = "        collective_device_list {{\n          iota_replica_group_list {{\n{devices}\n          }}\n        }}"
NEWER = "        iota_collective_device_list {{\n{devices}\n        }}"


@dataclass(frozen=True, slots=True)
class XlaTable:
    """Table of one communicator, at sizes in bytes. ``newer``: whether the devices are in the field from which newer
    XLA reads them.
    """

    scenario: Scenario
    sizes: Sequence[int]
    times: Times
    newer: bool = False

    def text(self, collectives: Sequence[Collective]) -> str:
        """The table's text, for the collectives that XLA knows. BadInput if there are no such collectives; NoAlgorithm
        if nothing can run.
        """
        known = [each for each in collectives if each in OPCODES]
        if not known:
            raise BadInput(f"xla: {one_of([each.name for each in OPCODES])}")
        whose: list[str] = []
        body = "".join(entry for each in known for entry in self._entries(each, whose))
        capability = self.scenario.communicator().min_comp_cap
        return f'# {head(self.scenario, whose)}\nentries {{\n  key: "sm_{capability}"\n  value {{\n{body}  }}\n}}\n'

    def _entries(self, collective: Collective, whose: list[str]) -> Iterator[str]:
        request, ranks = Request(collective, DataType.float32, Op.sum), self.scenario.ranks
        sizes = list(dict.fromkeys(whole(request, ranks, size) for size in self.sizes))
        times_us, of_whom = self.times.of(self.scenario, request, sizes)
        whose.append(of_whom)
        for size, time_us in zip(sizes, times_us, strict=True):
            output = size // ranks if collective is Collective.ReduceScatter else size
            yield ENTRY.format(
                opcode=OPCODES[collective],
                elements=output // ELEMENT_BYTES,
                dimensions="" if collective is Collective.AllReduce else "        dimensions: 0\n",
                devices=(NEWER if self.newer else OLDER).format(devices=DEVICES.format(ranks=ranks)),
                throughput=int(size / time_us * 1e6),
            )
