"""The messages of Chakra's schema that a schedule needs, made when they are needed: no generated code.

Source: schema/protobuf/et_def.proto of mlcommons/chakra; fields that are not written are left out.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tuner.base import extras

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
    """The classes Attribute, GlobalMetadata and Node, and what writes a message behind its length to a binary file.

    Errors: MissingExtra where protobuf is not installed.
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
