"""The schedule of a call as comma-separated values, as GOAL and as Chakra's execution traces.

GOAL is the text that LogGOPSim's and ATLAHS' txt2bin read (spcl/LogGOPSim, src/LogGOPSim/txt2bin.re). Chakra's files
are one of each rank, ``NAME.RANK.et``: messages of et_def.proto (mlcommons/chakra, schema/protobuf), each behind its
length as a varint, a GlobalMetadata first and then a Node for each send and receive, as ASTRA-sim's feeder reads them.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from tuner.answers.scheduled import ScheduledCall
from tuner.base.errors import BadInput
from tuner.emulator.steps.records import Fabric, Operation, Peer, operations

COLUMNS = (
    *("rank", "channel", "threads", "step", "operation", "peer"),
    *("first_byte", "bytes", "wire_bytes", "adds", "tag"),
)
SEND, RECEIVE = 5, 6  # NodeType.COMM_SEND_NODE and COMM_RECV_NODE


def write_csv(call: ScheduledCall, file: TextIO) -> None:
    """A row for each range of bytes at each end of each message; the first of a message has its bytes on the wire."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    size = call.schedule.element_bytes
    for rank in range(call.schedule.ranks):
        for each in operations(call.schedule, rank):
            step = each.step
            does = "send" if each.sends else "receive"
            adds = int(step.adds and not each.sends)
            peer = each.peer.value if isinstance(each.peer, Fabric) else each.peer
            on_the_wire = each.wire_bytes
            for first, elements in step.pieces:
                where = first * size, elements * size, on_the_wire
                writer.writerow((rank, step.channel, step.threads, step.number, does, peer, *where, adds, each.tag))
                on_the_wire = 0


def check_ranks_only(call: ScheduledCall, form: str) -> None:
    """BadInput where others than ranks take part."""
    if call.schedule.fabrics:
        names = " and ".join(dict.fromkeys(each.value.split()[0] for each in call.schedule.fabrics))
        raise BadInput(
            f"{form}: knows ranks alone, and the {names} takes part; valid: `format` csv, `env` NCCL_ALGO=Ring"
        )


def write_goal(call: ScheduledCall, file: TextIO, on_the_wire: bool) -> None:
    """One block of operations of each rank; each channel's threads are a CPU of their own. BadInput with a switch."""
    check_ranks_only(call, "goal")
    file.write(f"// {call.title}\nnum_ranks {call.schedule.ranks}\n")
    channels = {channel: place for place, channel in enumerate(call.schedule.channels)}
    for rank in range(call.schedule.ranks):
        file.write(f"\nrank {rank} {{\n")
        for each in operations(call.schedule, rank):
            nbytes = each.wire_bytes if on_the_wire else each.bytes
            cpu = call.schedule.threads * channels[each.step.channel] + each.step.threads
            does, towards = ("send", "to") if each.sends else ("recv", "from")
            file.write(f"l{each.number}: {does} {nbytes}b {towards} {each.peer} tag {each.tag} cpu {cpu}\n")
            file.writelines(f"l{each.number} requires l{other}\n" for other in each.after)
            file.writelines(f"l{each.number} irequires l{other}\n" for other in each.begun)
        file.write("}\n")


def write_chakra(call: ScheduledCall, prefix: Path, on_the_wire: bool) -> list[Path]:
    """A file of each rank.

    Errors: BadInput without protobuf (nccl-tuner[chakra]), with a switch, and where none can be written.
    """
    from tuner.answers.exports import chakra_messages

    check_ranks_only(call, "chakra")
    kinds, serialize = chakra_messages.load()
    paths = [prefix.with_name(f"{prefix.name}.{rank}.et") for rank in range(call.schedule.ranks)]
    for rank, path in enumerate(paths):
        try:
            with path.open("wb") as file:
                about = kinds.Attribute(name="schedule", string_val=call.title)
                serialize(kinds.GlobalMetadata(version="0.0.4", attr=[about]), file)
                for node in _nodes(call, rank, kinds, on_the_wire):
                    serialize(node, file)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None
    return paths


def _nodes(call: ScheduledCall, rank: int, kinds: Any, on_the_wire: bool) -> Iterator[Any]:
    for each in operations(call.schedule, rank):
        ends: tuple[Peer, Peer] = (rank, each.peer) if each.sends else (each.peer, rank)
        yield kinds.Node(
            id=each.number,
            name=_name(each),
            type=SEND if each.sends else RECEIVE,
            data_deps=each.after,
            attr=[
                kinds.Attribute(name="is_cpu_op", bool_val=False),
                kinds.Attribute(name="comm_size", int64_val=each.wire_bytes if on_the_wire else each.bytes),
                kinds.Attribute(name="comm_src", int32_val=ends[0]),
                kinds.Attribute(name="comm_dst", int32_val=ends[1]),
                kinds.Attribute(name="comm_tag", int32_val=each.tag),
            ],
        )


def _name(each: Operation) -> str:
    return f"channel {each.step.channel} step {each.step.number} {'to' if each.sends else 'from'} {each.peer}"
