"""XLA's collective performance table: what ``--xla_gpu_experimental_collective_perf_table_path`` takes.

A text proto of ``xla.gpu.DeviceHloInstructionProfiles`` (xla/service/gpu/model/hlo_op_profile.proto), as
``collective_perf_table_gen`` writes it: float32, one replica group, bytes of the whole array each second.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.answers.exports.timed import Times, head, whole
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.scenario import Scenario

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
    """Of one communicator, at sizes in bytes. ``newer``: in the field that newer XLA reads the devices from."""

    scenario: Scenario
    sizes: Sequence[int]
    times: Times
    newer: bool = False

    def text(self, collectives: Sequence[Collective]) -> str:
        """Of the collectives that XLA's table knows. Errors: BadInput for none; those of the picks."""
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
