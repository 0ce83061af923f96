"""Picks as a small binary file of size ranges, which a planner in any language looks up: ``export --format compiled``.

All numbers are little-endian, and every part begins at a multiple of 8 bytes:

    8 bytes   NCCLPICK
    u64       1, the version of the format
    u64       n, then n bytes of text: the communicator, padded with zeros
    u64       how many tables follow
    a table   24 bytes with the collective's name, padded with zeros; u64 rows; u64 from_bytes[rows + 1];
              rows of 16 bytes: f32 bytes_per_us, f32 latency_us, u16 channels, u16 threads, i8 algorithm, i8 protocol,
              2 bytes of padding

Row i holds sizes (NCCL's nBytes) from from_bytes[i] up to, but without, from_bytes[i + 1]. The time in us is
(float)bytes / bytes_per_us + latency_us in float32, which is NCCL's own prediction to the bit. Algorithm and protocol
are NCCL's numbers. A row with 0 channels is not answered: its time takes another form.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tuner.base.errors import BadInput
from tuner.emulator.compiled import ROW, CompiledSelection, PickTable
from tuner.emulator.request import Request
from tuner.scenario import Scenario

MAGIC, VERSION, NAME_BYTES = b"NCCLPICK", 1, 24


def compiled(scenario: Scenario, requests: Sequence[Request]) -> bytes:
    """The file of a communicator's calls of these kinds, one a collective.

    Errors: BadInput for a kind whose picks no table can say.
    """
    selection = CompiledSelection(scenario.communicator())
    tables = []
    for request in requests:
        table = selection.pick_table(request)
        if table is None:
            raise BadInput(f"{request.title}: no table of size ranges says its picks; valid: the format choices")
        tables.append((request.collective.name, table))
    return file_of(scenario.heading, tables)


def file_of(title: str, tables: Sequence[tuple[str, PickTable]]) -> bytes:
    """The file that has this text and these tables, each with its name of at most 24 bytes."""
    text = title.encode()
    parts = [MAGIC, struct.pack("<QQ", VERSION, len(text)), _padded(text), struct.pack("<Q", len(tables))]
    for name, table in tables:
        parts += [name.encode().ljust(NAME_BYTES, b"\0"), struct.pack("<Q", len(table.rows))]
        parts.append(table.from_bytes.astype("<u8").tobytes())
        parts.append(table.rows.astype(ROW.newbyteorder("<")).tobytes())
    return b"".join(parts)


def read_compiled(path: Path) -> dict[str, PickTable]:
    """The tables of such a file, by collective. Errors: BadInput for another file, or one that was cut off."""
    content = path.read_bytes()
    if content[:8] != MAGIC:
        raise BadInput(f"{path}: not a file of export's format compiled")
    try:
        version, length = struct.unpack_from("<QQ", content, 8)
        if version != VERSION:
            raise BadInput(f"{path}: version {version}; valid: {VERSION}")
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
        raise BadInput(f"{path}: cut off, or not of export's format compiled: {error}") from None
    return tables


def _padded(text: bytes) -> bytes:
    return text + b"\0" * (-len(text) % 8)
