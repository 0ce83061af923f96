"""Writes the schedule of a call as comma-separated values, as GOAL, or as Chakra's execution traces.

GOAL is the text that LogGOPSim's and ATLAHS' txt2bin read (spcl/LogGOPSim, src/LogGOPSim/txt2bin.re). Chakra has one
file per rank, ``NAME.RANK.et``, which ASTRA-sim's feeder reads. The file contains protobuf messages of et_def.proto
(mlcommons/chakra, schema/protobuf): one GlobalMetadata, and then a Node for each send and receive. Before each message
comes its length as a varint.
"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from tuner.base import extras
from tuner.base.errors import BadInput
from tuner.base.files import replacing
from tuner.base.spelling import option
from tuner.emulator.steps.records import InNetwork, Peer, Schedule, ScheduledOperation, operations

COLUMNS = (
    *("rank", "channel", "threads", "step", "operation", "peer"),
    *("first_byte", "bytes", "wire_bytes", "adds", "tag"),
)
SEND, RECEIVE = 5, 6  # NodeType.COMM_SEND_NODE and COMM_RECV_NODE


def write_csv(schedule: Schedule, file: TextIO) -> None:
    """Writes a row for each range of bytes at each end of each message. The first row of a message has the number of
    bytes that it has on the wire; its other rows have 0.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    size = schedule.element_bytes
    for rank in range(schedule.ranks):
        for each in operations(schedule, rank):
            step = each.step
            does = "send" if each.sends else "receive"
            adds = int(step.adds and not each.sends)
            peer = each.peer.value if isinstance(each.peer, InNetwork) else each.peer
            on_the_wire = each.wire_bytes
            for first, elements in step.pieces:
                where = first * size, elements * size, on_the_wire
                writer.writerow((rank, step.channel, step.threads, step.number, does, peer, *where, adds, each.tag))
                on_the_wire = 0


def check_ranks_only(schedule: Schedule, form: str) -> None:
    """Raises BadInput if something besides ranks, such as a switch, takes part."""
    if schedule.fabrics:
        names = " and ".join(dict.fromkeys(each.value.split()[0] for each in schedule.fabrics))
        raise BadInput(
            f"{form} can only describe ranks, but the {names} takes part in this schedule: use {option('format')} csv, "
            f"or {option('env')} NCCL_ALGO=Ring"
        )


def write_goal(schedule: Schedule, file: TextIO, on_the_wire: bool) -> None:
    """Writes a block of operations for each rank. In GOAL an operation runs on a CPU; here, each group of threads of
    each channel is a separate CPU. BadInput if a switch takes part.
    """
    check_ranks_only(schedule, "goal")
    file.write(f"// {schedule.title}\nnum_ranks {schedule.ranks}\n")
    channels = {channel: place for place, channel in enumerate(schedule.channels)}
    for rank in range(schedule.ranks):
        file.write(f"\nrank {rank} {{\n")
        for each in operations(schedule, rank):
            nbytes = each.wire_bytes if on_the_wire else each.bytes
            cpu = schedule.threads * channels[each.step.channel] + each.step.threads
            does, towards = ("send", "to") if each.sends else ("recv", "from")
            file.write(f"l{each.number}: {does} {nbytes}b {towards} {each.peer} tag {each.tag} cpu {cpu}\n")
            file.writelines(f"l{each.number} requires l{other}\n" for other in each.after)
            file.writelines(f"l{each.number} irequires l{other}\n" for other in each.begun)
        file.write("}\n")


def write_chakra(schedule: Schedule, prefix: Path, on_the_wire: bool) -> list[Path]:
    """Writes a file for each rank.

    BadInput without protobuf (nccl-tuner[chakra]), if a switch takes part, or if a file cannot be written.
    """

    check_ranks_only(schedule, "chakra")
    kinds, serialize = load()
    paths = [prefix.with_name(f"{prefix.name}.{rank}.et") for rank in range(schedule.ranks)]
    for rank, path in enumerate(paths):
        with replacing(path) as to, to.open("wb") as file:
            about = kinds.Attribute(name="schedule", string_val=schedule.title)
            serialize(kinds.GlobalMetadata(version="0.0.4", attr=[about]), file)
            for node in _nodes(schedule, rank, kinds, on_the_wire):
                serialize(node, file)
    return paths


def _nodes(schedule: Schedule, rank: int, kinds: Any, on_the_wire: bool) -> Iterator[Any]:
    for each in operations(schedule, rank):
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


def _name(each: ScheduledOperation) -> str:
    return f"channel {each.step.channel} step {each.step.number} {'to' if each.sends else 'from'} {each.peer}"


# By message its fields: name, number and type. A type in capitals is protobuf's, others are messages; many: repeated.
FIELDS = {
    "AttributeProto": (
        *(("name", 1, "STRING"), ("int32_val", 7, "INT32"), ("int64_val", 9, "INT64")),
        *(("bool_val", 27, "BOOL"), ("string_val", 29, "STRING")),
    ),
    "GlobalMetadata": (("version", 1, "STRING"), ("attr", 2, "AttributeProto many")),
    "Node": (
        *(("id", 1, "UINT64"), ("name", 2, "STRING"), ("type", 3, "INT32")),  # an enumeration is an int32 on the wire
        *(("ctrl_deps", 4, "UINT64 many"), ("data_deps", 5, "UINT64 many"), ("attr", 10, "AttributeProto many")),
    ),
}
PACKAGE = "ChakraProtoMsg"
VALUES = ("int32_val", "int64_val", "bool_val", "string_val")  # one of them: oneof value


def load() -> tuple[Any, Callable[[Any, Any], None]]:
    """The classes Attribute, GlobalMetadata and Node, and a function that writes a message's length and then the
    message to a binary file.

    MissingExtra if protobuf is not installed.
    """
    extras.require("google.protobuf", "chakra")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto

    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    for message, fields in FIELDS.items():
        described = file.message_type.add(name=message)
        if message == "AttributeProto":
            described.oneof_decl.add(name="value")
        for name, number, kind in fields:
            _add(described, name, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        message: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{message}"))
        for message in FIELDS
    }
    found = SimpleNamespace(
        Attribute=classes["AttributeProto"], GlobalMetadata=classes["GlobalMetadata"], Node=classes["Node"]
    )
    return found, proto.serialize_length_prefixed


def _add(described: Any, name: str, number: int, kind: str) -> None:
    word, _, many = kind.partition(" ")
    field = described.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if many else field.LABEL_OPTIONAL
    if word.isupper():
        field.type = getattr(field, f"TYPE_{word}")
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{word}"
    if name in VALUES:
        field.oneof_index = 0
