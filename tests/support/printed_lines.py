"""What a libnccl can print, and at which level: the format strings at its calls of the logger, from its machine code.

NCCL's ``WARN`` and ``INFO`` are calls of ``ncclDebugLog`` (``ncclDebugLogInternal`` from 2.30 on) with the level in the
first register, the file in the third and the format in the fifth or sixth: src/include/debug.h. Compilers let several
such calls share their last instructions, so that the registers are looked at rather than the call.
"""

import re
from functools import cache
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

WARN, INFO = 2, 3  # ncclDebugLogLevel, src/include/nccl_common.h
WINDOW = 64  # bytes of code on either side of the format's place in which the level is set
_LEVEL = re.compile(rb"\xbf([\x02\x03])\x00\x00\x00")  # mov edi, imm32
_FORMAT = re.compile(rb"\x4c\x8d([\x05\x0d])(.{4})", re.S)  # lea r8 or r9, [rip + disp32]
_INTERNAL = "ncclDebugLogInternal"


@cache
def printed_lines(library: Path) -> dict[int, frozenset[str]]:
    """Format strings by level."""
    found: dict[int, set[str]] = {WARN: set(), INFO: set()}
    with library.open("rb") as file:
        elf = ELFFile(file)
        code_section, read_only = elf.get_section_by_name(".text"), elf.get_section_by_name(".rodata")
        assert code_section is not None
        assert read_only is not None
        code, base = bytes(code_section.data()), int(code_section["sh_addr"])
        strings, strings_at = bytes(read_only.data()), int(read_only["sh_addr"])
        symbols = elf.get_section_by_name(".symtab")
        assert isinstance(symbols, SymbolTableSection)
        names = (each.name for each in symbols.iter_symbols())
        register = b"\x0d" if any(_INTERNAL in name for name in names) else b"\x05"
    for match in _FORMAT.finditer(code):
        if match[1] != register:
            continue
        place = base + match.end() + int.from_bytes(match[2], "little", signed=True) - strings_at
        if not 0 <= place < len(strings):
            continue
        near = [
            (abs(level.start() - (match.start() - start)), level[1][0])
            for start in (max(0, match.start() - WINDOW),)
            for level in _LEVEL.finditer(code[start : match.end() + WINDOW])
        ]
        text = strings[place : strings.index(b"\0", place)]
        if near and text.isascii() and (b"%" in text or b" " in text.strip()):  # others are arguments, not formats
            found[min(near)[1]].add(text.decode().strip())
    return {level: frozenset(texts) for level, texts in found.items()}


_SPECIFIER = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j)?([a-zA-Z])")


def as_printed(text: str) -> str:
    """A format string with a number or a word for each of its arguments."""
    return _SPECIFIER.sub(lambda match: "7" if match[1] in "diuxXlzc" else "word", text)
