"""Times of NCCL's picks for an export, and who predicts them."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tuner.answers import calibrated
from tuner.answers.calibrated import TimesWanted
from tuner.base.errors import BadInput, TunerError, one_of
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.costmodels.operations import bus_gbs

BY_NCCL = "predicted by NCCL's own model"
Array = NDArray[np.float64]


def times_of(
    scenario: Scenario, request: Request, sizes: Sequence[int], wanted: TimesWanted | None
) -> tuple[Array, str]:
    """Times in us, [size], of NCCL's picks for these sizes (nBytes), and who predicts them: NCCL if ``wanted`` is None,
    else a calibration. Errors: NoAlgorithm, BadInput.
    """
    selection = Selection(scenario.communicator())
    if wanted is None:
        return selection.pick(request, sizes).time_us.astype(np.float64), BY_NCCL
    calls = calibrated.calls(scenario, selection, request, sizes, wanted.calibration)
    return np.asarray(calls.time_us, np.float64), f"calibrated to measured times, {calls.calibration}"


def head(scenario: Scenario, whose: Iterable[str]) -> str:
    """The line in which an export describes itself."""
    return f"{scenario.heading}; times {'; '.join(dict.fromkeys(whose))}"


def whole(request: Request, ranks: int, size: int) -> int:
    """The smallest size, in bytes, that is at least ``size`` and possible for the collective."""
    unit = request.unit_bytes(ranks)
    return -(-size // unit) * unit


SIZES = tuple(1 << power for power in range(24, 35))  # 16 MiB to 16 GiB
NODES = tuple(1 << power for power in range(8))  # 1 to 128
OTHERS = ("Multi 16", "Multi 32", "Muiti 64", "Multi (NIC)")  # sic


def table(
    scenario: Scenario, collective: Collective, nvlink_gbs: float, nics_gbs: float, wanted: TimesWanted | None
) -> tuple[str, list[str]]:
    """Returns the file's text, and who predicts its times. If there is no time for a number of nodes, its cells are
    empty.

    ``nvlink_gbs`` is the bandwidth of a GPU's NVLink in one direction, ``nics_gbs`` that of all adapters of a node
    together, in GB/s. BadInput if one of them is not above 0.
    """
    if nvlink_gbs <= 0 or nics_gbs <= 0:
        raise BadInput("the bandwidths of links have to be more than 0 GB/s")
    request, whose = Request(collective, DataType.float32, Op.sum), []
    columns: list[list[str]] = []
    for nodes in NODES:
        several = replace(scenario, nodes=nodes)
        try:
            sizes = [whole(request, several.ranks, size) for size in SIZES]
            times_us, of_whom = times_of(several, request, sizes, wanted)
        except TunerError:
            columns.append([""] * len(SIZES))
            continue
        whose.append(of_whom)
        limit_gbs = nvlink_gbs if nodes == 1 else min(nvlink_gbs, nics_gbs)
        busbw_gbs = np.asarray(bus_gbs(collective, np.array(sizes), times_us, several.ranks))
        columns.append([f"{each / limit_gbs:.4f}" for each in busbw_gbs])
    gpus = replace(scenario, nodes=1).ranks
    titles = ("1 Node(NVLinkx)", *(f"{nodes}Node-{nodes * gpus}GPU(NIC)" for nodes in NODES[1:]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("Size", *titles, *OTHERS))
    writer.writerows((size, *cells, *[""] * len(OTHERS)) for size, *cells in zip(SIZES, *columns, strict=True))
    return text.getvalue(), list(dict.fromkeys(whose))


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


def xla(
    scenario: Scenario,
    collectives: Sequence[Collective],
    sizes: Sequence[int],
    wanted: TimesWanted | None,
    newer: bool = False,
) -> str:
    """The text of a table of one communicator at sizes in bytes, for the collectives that XLA knows. ``newer``: whether
    the devices are written into the field from which newer releases of XLA read them.

    BadInput if XLA knows none of the collectives; NoAlgorithm if nothing can run.
    """
    known = [each for each in collectives if each in OPCODES]
    if not known:
        raise BadInput(f"xla: {one_of([each.name for each in OPCODES])}")
    entries, whose = list[str](), list[str]()
    devices = (NEWER if newer else OLDER).format(devices=DEVICES.format(ranks=scenario.ranks))
    for collective in known:
        request = Request(collective, DataType.float32, Op.sum)
        possible = list(dict.fromkeys(whole(request, scenario.ranks, size) for size in sizes))
        times_us, of_whom = times_of(scenario, request, possible, wanted)
        whose.append(of_whom)
        for size, time_us in zip(possible, times_us, strict=True):
            output = size // scenario.ranks if collective is Collective.ReduceScatter else size
            entry = ENTRY.format(
                opcode=OPCODES[collective],
                elements=output // ELEMENT_BYTES,
                dimensions="" if collective is Collective.AllReduce else "        dimensions: 0\n",
                devices=devices,
                throughput=int(size / time_us * 1e6),
            )
            entries.append(entry)
    capability = scenario.communicator().min_comp_cap
    body = "".join(entries)
    return f'# {head(scenario, whose)}\nentries {{\n  key: "sm_{capability}"\n  value {{\n{body}  }}\n}}\n'
