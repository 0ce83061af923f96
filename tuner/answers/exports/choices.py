"""Exports ranges of sizes with NCCL's picks, for code of frameworks: one JSON object per communicator."""

import struct
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

import numpy as np

from tuner.answers.symmetric import picks_of
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Buffers
from tuner.base.nouns import Choice
from tuner.base.records import json_form
from tuner.emulator.compiled import ROW, CompiledSelection, PickTable, with_clear_padding
from tuner.emulator.ranges import answers, launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class ExportedChoice(Choice):
    """NCCL's pick for nBytes from one size to another; ``time_us`` is NCCL's prediction at both ends.

    Symmetric kernels have the times of NCCL's model of them; copy engines have none.
    """

    from_bytes: int
    to_bytes: int
    time_us: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class ExportedChoices:
    """Choices of one communicator, by collective; ``times`` says who predicts the times."""

    communicator: str
    nccl: str
    ranks: int
    nodes: int
    dtype: str
    op: str
    times: str
    collectives: dict[str, list[ExportedChoice]]
    buffers: str | None = field(default=None, metadata=json_form(optional=True))  # of all calls; None: plain
    in_place: bool | None = field(default=None, metadata=json_form(optional=True))  # where it may matter


def choices(scenario: Scenario, requests: Sequence[Request], low: int | None, high: int) -> ExportedChoices:
    """Ranges of sizes, without gaps, with NCCL's choices. BadInput for what is not emulated, NoAlgorithm if nothing can
    run.
    """
    selection = Selection(scenario.communicator())
    first = requests[0]
    return ExportedChoices(
        communicator=scenario.heading,
        nccl=selection.communicator.release.name,
        ranks=selection.communicator.ranks,
        nodes=selection.communicator.nodes,
        dtype=first.dtype.name,
        op=first.op.name,
        times="predicted by NCCL's own model, in us",
        collectives={request.collective.name: _of(selection, request, low, high) for request in requests},
        buffers=None if first.buffers is Buffers.plain else first.buffers.name,
        in_place=None if first.buffers is Buffers.plain else first.in_place,
    )


def _of(selection: Selection, request: Request, low: int | None, high: int) -> list[ExportedChoice]:
    bypassing = selection.may_leave_classic_path(request)
    found = (answers if bypassing else launches)(selection, request, low, high)
    first, last = (picks_of(selection, request, sizes) for sizes in (found.from_bytes, found.to_bytes))
    return [
        ExportedChoice(
            *(each.algorithm, each.protocol, each.channels, each.threads),
            *(each.from_bytes, each.to_bytes, (begin.time_us, end.time_us)),
            bypass=each.bypass,
        )
        for each, begin, end in zip(found.records(request), first, last, strict=True)
    ]


MAGIC, VERSION, NAME_BYTES = b"NCCLPICK", 1, 24


def compiled(scenario: Scenario, requests: Sequence[Request]) -> bytes:
    """The content of a compiled file with NCCL's picks for calls like ``requests`` on a communicator, one request per
    collective.

    BadInput if a table of size ranges cannot hold the picks of a request.
    """
    selection = CompiledSelection(scenario.communicator())
    tables = []
    for request in requests:
        table = selection.pick_table(request)
        if table is None:
            raise BadInput(f"a table of size ranges cannot hold the picks of {request.title}: use the format choices")
        tables.append((request.collective.name, table))
    return file_of(scenario.heading, tables)


def file_of(title: str, tables: Sequence[tuple[str, PickTable]]) -> bytes:
    """The content of a file with a title and these tables, each with a name of at most 24 bytes."""
    text = title.encode()
    parts = [MAGIC, struct.pack("<QQ", VERSION, len(text)), _padded(text), struct.pack("<Q", len(tables))]
    for name, table in tables:
        parts += [name.encode().ljust(NAME_BYTES, b"\0"), struct.pack("<Q", len(table.rows))]
        parts.append(table.from_bytes.astype("<u8").tobytes())
        parts.append(with_clear_padding(table.rows, ROW.newbyteorder("<")).tobytes())
    return b"".join(parts)


def read_compiled(path: Path) -> dict[str, PickTable]:
    """Reads the tables of a compiled file, and returns them by name of the collective. BadInput if the file is not a
    compiled file, has another version of the format, or was cut off.
    """
    content = path.read_bytes()
    if content[:8] != MAGIC:
        raise BadInput(f"{path} is not a compiled file, as 'nccl-tuner export' writes it")
    try:
        version, length = struct.unpack_from("<QQ", content, 8)
        if version != VERSION:
            raise BadInput(f"{path} has version {version} of the format, and only version {VERSION} is read")
        at = 24 + length + -length % 8
        (count,) = struct.unpack_from("<Q", content, at)
        at += 8
        tables = {}
        for _ in range(count):
            name = content[at : at + NAME_BYTES].rstrip(b"\0").decode()
            (rows,) = struct.unpack_from("<Q", content, at + NAME_BYTES)
            at += NAME_BYTES + 8
            from_bytes = np.frombuffer(content, "<u8", rows + 1, at)
            at += from_bytes.nbytes
            tables[name] = PickTable(from_bytes, np.frombuffer(content, ROW.newbyteorder("<"), rows, at))
            at += rows * ROW.itemsize
    except (struct.error, ValueError) as error:
        raise BadInput(f"{path} is cut off, or not a compiled file of 'nccl-tuner export': {error}") from None
    return tables


def _padded(text: bytes) -> bytes:
    return text + b"\0" * (-len(text) % 8)
