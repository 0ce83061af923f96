"""The tuner plugin: format, lookup, what it writes and says; alone, under the sanitizers and in the real libnccl."""

import ctypes
import hashlib
import math
import os
import re
import shutil
import subprocess
import threading
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tuner import plugin
from tuner.base.errors import BadTable, TunerError
from tuner.base.extras import bindings, shared_object
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.plugin.dry_run import INFO, WARN, DryRun, TunedCosts, TunerCall
from tuner.plugin.table.parse import from_text, read, to_text
from tuner.plugin.table.records import ANY_BYTES, ANY_COUNT, HEADER, LARGEST, Decision, Table, TableChoice

SOURCES = Path(__file__).resolve().parents[2] / "csrc" / "plugin"
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wstrict-prototypes"]
SHAPE = (len(Algorithm), len(Protocol))
AR = Collective.AllReduce


def Row(
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    channels: int | None = None,
    bytes: Span = ANY_BYTES,
    ranks: Span = ANY_COUNT,
    nodes: Span = ANY_COUNT,
) -> Decision:
    return Decision(collective, (TableChoice(algorithm, protocol, channels),), bytes=bytes, ranks=ranks, nodes=nodes)


def costs(**cells: float) -> NDArray[np.float32]:
    """A cost table in which only the cells given, such as ``Ring_LL128=5``, are not ignored."""
    table = np.full(SHAPE, -1.0, np.float32)
    for name, time_us in cells.items():
        algorithm, protocol = name.split("_")
        table[Algorithm[algorithm], Protocol[protocol]] = time_us
    return table


ALL_EQUAL = np.full(SHAPE, 7.0, np.float32)
TYPICAL = costs(Tree_LL=9, Tree_LL128=8, Tree_Simple=30, Ring_LL=40, Ring_LL128=20, Ring_Simple=25, NVLS_Simple=10)


def picked(cells: NDArray[np.float32]) -> tuple[Algorithm, Protocol] | None:
    """What NCCL takes: algorithms ascending, protocols inside, strictly smaller wins, below an hour."""
    best, choice = np.float32(3.6e9), None
    for algorithm, row in enumerate(cells):
        for protocol, time_us in enumerate(row):
            if time_us != -1 and time_us >= 0 and time_us < best:
                best, choice = time_us, (Algorithm(algorithm), Protocol(protocol))
    return choice


def table_of(folder: Path, content: str | bytes, name: str = "test.table") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows_of(folder: Path, *rows: str) -> Path:
    return table_of(folder, "\n".join([HEADER, *rows, ""]))


def ask(
    table: Path | None,
    size_bytes: int,
    cost_us: NDArray[np.float32] = TYPICAL,
    *,
    collective: Collective | int = AR,
    ranks: int = 16,
    nodes: int = 2,
    channels: int = 0,
) -> TunedCosts:
    with DryRun(table, ranks=ranks, nodes=nodes) as run:
        return run.ask(TunerCall(collective, size_bytes), cost_us, channels=channels)


def log_of(table: Path | str | None, *, ranks: int = 16, nodes: int = 2) -> list[tuple[int, str]]:
    with DryRun(table, ranks=ranks, nodes=nodes) as run:
        return [(line.level, line.text.removeprefix("TUNER/nccl-tuner: ")) for line in run.log]


def same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def untouched(answer: TunedCosts, cost_us: NDArray[np.float32] = TYPICAL, channels: int = 0) -> bool:
    return same_bits(answer.cost_us, cost_us) and answer.channels == channels


# The shared object


def section(elf: ELFFile, name: str) -> Any:
    found = elf.get_section_by_name(name)
    assert found is not None
    return found


def test_path_is_the_shared_object() -> None:
    assert plugin.path().name == "libnccl_tuner_plugin.so"
    assert plugin.path().is_absolute()


def test_a_plugin_that_was_not_built_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plugin, "_SHARED_OBJECT", tmp_path / "gone.so")
    with pytest.raises(TunerError, match=r"^no tuner plugin at .*gone\.so: [^\n]*Linux only$"):
        plugin.path()


def test_exports_the_plugin_and_nothing_else() -> None:
    with plugin.path().open("rb") as file:
        symbols = section(ELFFile(file), ".dynsym").iter_symbols()
        exported = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    profilers = {f"ncclProfiler_v{version}" for version in range(3, 7)}
    assert exported == {f"ncclTunerPlugin_v{version}" for version in range(1, 8)} | profilers


def test_is_bound_at_load_and_guards_its_stack() -> None:
    with plugin.path().open("rb") as file:
        elf = ELFFile(file)
        flags = {tag.entry.d_tag: tag.entry.d_val for tag in section(elf, ".dynamic").iter_tags()}
        used = {symbol.name for symbol in section(elf, ".dynsym").iter_symbols()}
        segments = {segment["p_type"]: segment["p_flags"] for segment in elf.iter_segments()}
    assert flags["DT_FLAGS"] & 8, "DF_BIND_NOW"
    assert "PT_GNU_RELRO" in segments
    assert not segments["PT_GNU_STACK"] & 1, "the stack may be executed"
    assert "__stack_chk_fail" in used


def test_needs_libc_and_nothing_else() -> None:
    with plugin.path().open("rb") as file:
        tags = section(ELFFile(file), ".dynamic").iter_tags()
        needed = [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
    assert needed == ["libc.so.6"]


def test_modules_do_not_include_each_other_in_a_circle() -> None:
    includes: dict[str, set[str]] = {}
    for file in SOURCES.glob("*.[ch]"):
        named = re.findall(r'^#include "(\w+)\.h"$', file.read_text(), flags=re.MULTILINE)
        includes.setdefault(file.stem, set()).update(set(named) - {file.stem})
    assert {"rows", "table"} <= includes["parse"]
    tuple(TopologicalSorter(includes).static_order())  # CycleError names a circle


@pytest.mark.parametrize("name", ["plugin", "force", "sim"])
def test_what_libnccl_loads_is_free_of_python(name: str) -> None:
    with shared_object(f"nccl_tuner_{name}").open("rb") as file:
        elf = ELFFile(file)
        needed = [tag.needed for tag in section(elf, ".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
        symbols = [symbol.name for symbol in section(elf, ".dynsym").iter_symbols()]
    assert all(library.startswith(("libc.", "libdl.", "libpthread.", "ld-linux")) for library in needed), needed
    assert not [symbol for symbol in symbols if symbol.startswith(("Py", "_Py", "_cffi"))]


@pytest.mark.parametrize("name", ["plugin", "force"])
def test_python_and_libnccl_use_one_object(name: str) -> None:
    module = bindings(f"_{name}")
    with Path(module.__file__).open("rb") as file:
        needed = [
            tag.needed for tag in section(ELFFile(file), ".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"
        ]
    assert f"libnccl_tuner_{name}.so" in needed
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if f"_tuner_{name}" in line}
    ctypes.CDLL(str(shared_object(f"nccl_tuner_{name}")))
    after = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if f"_tuner_{name}" in line}
    assert mapped == after == {str(shared_object(f"nccl_tuner_{name}"))}


def test_loads_on_systems_with_glibc_2_17() -> None:
    with plugin.path().open("rb") as file:
        elf = ELFFile(file)
        needed = [
            tuple(map(int, version.name.removeprefix("GLIBC_").split(".")))
            for _, versions in section(elf, ".gnu.version_r").iter_versions()
            for version in versions
        ]
        tags = {tag.entry.d_tag for tag in section(elf, ".dynamic").iter_tags()}
    assert needed
    assert max(needed) <= (2, 17)
    assert not tags & {"DT_RPATH", "DT_RUNPATH"}


@pytest.mark.slow
def test_make_builds_the_plugin_without_python(tmp_path: Path) -> None:
    make = shutil.which("make") or pytest.skip("no make")
    root = SOURCES.parent.parent
    shutil.copytree(root / "csrc", tmp_path / "csrc")
    shutil.copy(root / "Makefile", tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "mkdir", "cc", "as", "ld"):
        (tools / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name}"))
    command = [make, "plugin", "PYTHON=/nowhere/python"]
    subprocess.run(command, cwd=tmp_path, env={"PATH": str(tools)}, check=True, capture_output=True)
    built = ctypes.CDLL(str(tmp_path / "build" / "libnccl_tuner_plugin.so"))
    assert built.ncclTunerPlugin_v6 is not None


@pytest.mark.slow
def test_has_no_variable_that_two_communicators_could_share(tmp_path: Path) -> None:
    # NCCL 2.19 and 2.20 call without a context, tables are read once, one thread writes what is measured, and NCCL logs
    # by one level: there something is shared, one thing each.
    for source in sorted(
        set(SOURCES.glob("*.c"))
        - {SOURCES / name for name in ("adapters.c", "tables.c", "chain.c", "log.c", "profiler.c", "explorer.c")}
    ):
        target = tmp_path / f"{source.stem}.o"
        subprocess.run([compiler(), "-std=c11", "-O2", "-fPIC", "-c", source, "-o", target], check=True)
        with target.open("rb") as file:
            elf = ELFFile(file)
            writable = {elf.get_section_index(name) for name in (".data", ".bss", ".tbss", ".tdata")}
            for symbol in section(elf, ".symtab").iter_symbols():
                is_object = symbol["st_info"]["type"] in ("STT_OBJECT", "STT_TLS")
                assert not (is_object and symbol["st_shndx"] in writable), f"{source.name}: {symbol.name}"
                assert symbol["st_shndx"] != "SHN_COMMON", f"{source.name}: {symbol.name}"


def test_branches_and_loops_have_braces() -> None:
    bare = re.compile(r"^ *(?:\} else )?(?:if|for|while) \(.*\)$|^ *(?:\} )?else$", re.MULTILINE)
    assert bare.search("    if (a)\n        b();")
    assert not [file.name for file in SOURCES.parent.rglob("*.[ch]") if bare.search(file.read_text())]


def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    assert found, "the tests compile the plugin: a C compiler has to be there"
    return found


@pytest.mark.parametrize("source", sorted(SOURCES.glob("**/*.c")), ids=lambda path: path.name)
def test_compiles_without_a_warning(source: Path) -> None:
    subprocess.run([compiler(), *WARNINGS, "-O2", "-fsyntax-only", source], check=True)


# The format: one set of examples, for the C reader and the Python one

ACCEPTED = {
    "all keys": ("allreduce bytes=64K..4M ranks=16 nodes=2 -> ring/ll128 channels=8", (64 << 10, 4 << 20), 8),
    "no key": ("allreduce -> ring/ll128", (0, LARGEST), None),
    "other order": ("allreduce nodes=2 ranks=16 bytes=..9 -> ring/ll128", (0, 9), None),
    "NCCL's spelling": ("AllReduce bytes=7.. -> Ring/LL128", (7, LARGEST), None),
    "any case": ("ALLREDUCE -> RING/ll128 channels=64", (0, LARGEST), 64),
    "one size": ("allreduce bytes=5 -> ring/ll128", (5, 5), None),
    "size nothing": ("allreduce bytes=0..0 -> ring/ll128", (0, 0), None),
    "units": ("allreduce bytes=1kib..2GiB -> ring/ll128", (1 << 10, 2 << 30), None),
    "short units": ("allreduce bytes=3m..1t -> ring/ll128", (3 << 20, 1 << 40), None),
    "past 4 GiB": ("allreduce bytes=4294967296..8G -> ring/ll128", (1 << 32, 8 << 30), None),
    "largest": (f"allreduce bytes={LARGEST}.. -> ring/ll128", (LARGEST, LARGEST), None),
    "leading zeros": (f"allreduce bytes={'0' * 50}7 -> ring/ll128 channels=007", (7, 7), 7),
    "comment": ("allreduce bytes=..5 -> ring/ll128 channels=1# note -> \u00e9", (0, 5), 1),
    "blanks": ("  \tallreduce\t bytes=..5   ->\tring/ll128 \t", (0, 5), None),
    "intervals of ranks": ("allreduce ranks=9..16 nodes=..2 -> ring/ll128", (0, LARGEST), None),
}


@pytest.mark.parametrize(("row", "interval", "channels"), ACCEPTED.values(), ids=ACCEPTED)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n  # the end\n"])
def test_accepts(tmp_path: Path, row: str, interval: tuple[int, int], channels: int | None, end: str) -> None:
    content = f"# by hand\n\n {HEADER} # one\n{row}{end}"
    low, high = interval
    (parsed,) = from_text(content).decisions
    assert (parsed.collective, *parsed.choices[0].algo_proto) == (AR, Algorithm.Ring, Protocol.LL128)
    assert parsed.choices[0].channels == channels
    table = table_of(tmp_path, content)
    with DryRun(table, ranks=16, nodes=2) as run:
        assert run.log[0].level == INFO
        for size in {low, high}:
            assert size in parsed.bytes
            answer = run.ask(TunerCall(AR, size), TYPICAL)
            assert picked(answer.cost_us) == (Algorithm.Ring, Protocol.LL128)
            assert answer.channels == (channels or 0)
        for size in ({low - 1} if low else set()) | ({high + 1} if high < LARGEST else set()):
            assert size not in parsed.bytes
            assert untouched(run.ask(TunerCall(AR, size), TYPICAL))


REFUSED = {
    "unknown collective": ("alltoall -> ring/ll", "unknown collective 'alltoall' (valid: Broadcast, Reduce, "),
    "unknown algorithm": ("allreduce -> rang/ll", "unknown algorithm 'rang' (valid: Tree, Ring, CollNetDirect, "),
    "unknown protocol": ("allreduce -> ring/ll129", "unknown protocol 'll129' (valid: LL, LL128, Simple)"),
    "unknown key": ("allreduce size=5 -> ring/ll", "ranks, nodes"),
    "unknown setting": ("allreduce -> ring/ll threads=5", "channels"),
    "key with capitals": ("allreduce Bytes=5 -> ring/ll", "ranks, nodes"),
    "setting before the arrow": ("allreduce channels=5 -> ring/ll", "ranks, nodes"),
    "condition after the arrow": ("allreduce -> ring/ll nodes=5", "channels"),
    "key twice": ("allreduce nodes=5 nodes=5 -> ring/ll", "'nodes' twice"),
    "channels twice": ("allreduce -> ring/ll channels=1 channels=1", "'channels' twice"),
    "no value": ("allreduce bytes= -> ring/ll", "''"),
    "no equals sign": ("allreduce bytes -> ring/ll", "'bytes'"),
    "no arrow": ("allreduce bytes=5", "no '->'"),
    "only a collective": ("allreduce", "no '->'"),
    "arrow without blanks": ("allreduce bytes=5->ring/ll", ""),
    "nothing after the arrow": ("allreduce ->", "algorithm/protocol"),
    "no protocol": ("allreduce -> ring", "algorithm/protocol"),
    "empty protocol": ("allreduce -> ring/", "unknown protocol ''"),
    "list": ("allreduce -> ring/ll,tree/ll", "unknown protocol 'll,tree/ll'"),
    "second header": (HEADER, f"unknown collective '{HEADER.split()[0]}'"),
    "reversed": ("allreduce bytes=5..4 -> ring/ll", "'5..4': the first number is above the second"),
    "reversed ranks": ("allreduce ranks=5..4 -> ring/ll", "'5..4': the first number is above the second"),
    "no ranks": ("allreduce ranks=0 -> ring/ll", "'0': at least 1"),
    "up to no nodes": ("allreduce nodes=..0 -> ring/ll", "'..0': at least 1"),
    "neither end": ("allreduce bytes=.. -> ring/ll", "'..'"),
    "three dots": ("allreduce bytes=1...2 -> ring/ll", "'.2' is not a number"),
    "minus": ("allreduce bytes=-1 -> ring/ll", "'-1' is not a number"),
    "plus": ("allreduce bytes=+1 -> ring/ll", "'+1' is not a number"),
    "decimals": ("allreduce bytes=1.5M -> ring/ll", "'1.5M' is not a number"),
    "hexadecimal": ("allreduce bytes=0x10 -> ring/ll", "'0x10' is not a number"),
    "unit alone": ("allreduce bytes=K -> ring/ll", "'K' is not a number"),
    "unknown unit": ("allreduce bytes=1KB -> ring/ll", "'1KB' is not a number"),
    "ranks with a unit": ("allreduce ranks=1K -> ring/ll", "'1K' is not a number"),
    "other digits": ("allreduce ranks=\u0661 -> ring/ll", "'??' is not a number"),
    "too large by one": (f"allreduce bytes={LARGEST + 1} -> ring/ll", f"past the largest number, {LARGEST}"),
    "too large": (f"allreduce bytes=..{'9' * 5000} -> ring/ll", "...' is past the largest number"),
    "too large in its unit": ("allreduce bytes=16777216T -> ring/ll", "'16777216T' is past the largest number"),
    "too large, no number": (f"allreduce bytes={'9' * 40}x -> ring/ll", "is not a number"),
    "no channels": ("allreduce -> ring/ll channels=0", "channels=0 is not a number from 1 to 64"),
    "NVIDIA's -1": ("allreduce -> ring/ll channels=-1", "channels=-1 is not a number from 1 to 64"),
    "65 channels": ("allreduce -> ring/ll channels=65", "channels=65 is not a number from 1 to 64"),
    "many channels": (f"allreduce -> ring/ll channels={2**32 + 1}", "is not a number from 1 to 64"),
    "zero byte": ("allreduce\0 -> ring/ll", "a zero byte"),
    "zero byte in a comment": ("allreduce -> ring/ll # \0", "a zero byte"),
    "lone carriage return": ("allreduce -> ring/ll\r# x", "unknown protocol 'll?'"),
    "form feed": ("allreduce\f-> ring/ll", "unknown collective 'allreduce?->'"),
    "escape sequence": ("\x1b[2J -> ring/ll", "unknown collective '?[2J'"),
    "format": ("%s%n%s -> ring/ll", "unknown collective '%s%n%s'"),
    "huge word": ("x" * 100_000, f"unknown collective '{'x' * 44}...'"),
    "huge line": ("allreduce " + "nodes=2 " * 100_000 + "-> ring/ll", "'nodes' twice"),
}


@pytest.mark.parametrize(("row", "fragment"), REFUSED.values(), ids=REFUSED)
def test_refuses_the_whole_table(tmp_path: Path, row: str, fragment: str) -> None:
    table = rows_of(tmp_path, "# a comment", "allreduce -> ring/ll", "", row, "allreduce -> also wrong")
    with DryRun(table, ranks=16, nodes=2) as run:
        assert untouched(run.ask(TunerCall(AR, 5), TYPICAL)), "the good row above the bad one has to be ignored too"
    (warning,) = run.log
    assert warning.level == WARN
    assert f"{table}:5: " in warning.text
    assert fragment in warning.text
    assert warning.text.endswith("; the whole table is ignored")
    assert warning.text.isprintable()
    with pytest.raises(BadTable) as caught:
        read(table)
    assert str(caught.value).startswith(f"{table}:5: ")
    assert fragment in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "line", "fragment"),
    [
        ("", 1, f"empty: the first line has to be '{HEADER}'"),
        ("\n# nothing\n\n", 1, "empty"),
        ("allreduce -> ring/ll\n", 1, f"the first line has to be '{HEADER}', not 'allreduce -> ring/ll'"),
        (f"# x\n\ufeff{HEADER}\n", 2, f"not '???{HEADER}'"),
        ("nccl-tuner-table 2\n", 1, "version '2' of the table format is unknown (valid: 1)"),
        ("nccl-tuner-table\n", 1, "version '' of the table format is unknown"),
        ("nccl-tuner-table 1 2\n", 1, "2'"),
        ("nccl-tuner-table 01\n", 1, "'01'"),
        ("NCCL-tuner-table 1\n", 1, "the first line"),
        (b"\x7fELF\x02\x01\x01\0\0\n", 1, "a zero byte"),
        (b"\0" * 1000, 1, "a zero byte"),
        (b"\xff" * 100_000, 1, "the first line"),
    ],
)
def test_refuses_a_file_that_is_no_table(tmp_path: Path, content: str | bytes, line: int, fragment: str) -> None:
    table = table_of(tmp_path, content)
    ((level, text),) = log_of(table)
    assert (level, f"{table}:{line}: " in text, fragment in text) == (WARN, True, True), text
    with pytest.raises(BadTable) as caught:
        read(table)
    assert f"{table}:{line}: " in str(caught.value)
    assert fragment in str(caught.value)


def test_a_table_without_rows_is_one(tmp_path: Path) -> None:
    table = table_of(tmp_path, f"{HEADER}\n")
    assert read(table) == Table()
    assert "0 rows, 0 of them" in log_of(table)[0][1]
    assert untouched(ask(table, 5))


# The lookup


def test_both_ends_belong_to_an_interval(tmp_path: Path) -> None:
    table = rows_of(tmp_path, "allreduce bytes=100..200 -> ring/simple channels=3")
    assert [ask(table, size).channels for size in (99, 100, 200, 201)] == [0, 3, 3, 0]


def test_the_first_row_that_matches_wins(tmp_path: Path) -> None:
    table = rows_of(
        tmp_path,
        "allreduce bytes=100..200 -> ring/ll channels=1",
        "allreduce bytes=200..300 -> ring/ll channels=2",
        "allreduce bytes=150 -> ring/ll channels=3",
        "allreduce bytes=50..1000 -> ring/ll channels=4",
        "allreduce -> ring/ll channels=5",
    )
    sizes = (0, 49, 50, 99, 100, 150, 200, 201, 300, 301, 1000, 1001, LARGEST)
    assert [ask(table, size).channels for size in sizes] == [5, 5, 4, 4, 1, 1, 1, 2, 2, 4, 4, 5, 5]


def test_sizes_past_4_gib(tmp_path: Path) -> None:
    table = rows_of(
        tmp_path, "allreduce bytes=4G..8G -> ring/ll channels=1", "allreduce bytes=16T.. -> ring/ll channels=2"
    )
    sizes = (0, 1, (1 << 32) - 1, 1 << 32, 8 << 30, (8 << 30) + 1, 16 << 40, LARGEST)
    assert [ask(table, size).channels for size in sizes] == [0, 0, 0, 1, 1, 0, 2, 2]


@pytest.mark.parametrize("collective", Collective)
def test_rows_are_for_their_collective(tmp_path: Path, collective: Collective) -> None:
    table = rows_of(tmp_path, *(f"{each.name} -> ring/ll channels={each + 1}" for each in Collective))
    assert ask(table, 5, collective=collective).channels == collective + 1


@pytest.mark.parametrize("number", [-1, 5, 8, 14, 2**31 - 1, -(2**31)])
def test_other_functions_of_nccl_have_no_rows(tmp_path: Path, number: int) -> None:
    table = rows_of(tmp_path, *(f"{each.name} -> ring/ll channels=1" for each in Collective))
    assert untouched(ask(table, 5, collective=number))


@pytest.mark.parametrize(
    ("ranks", "nodes", "channels"),
    [(16, 2, 1), (16, 4, 2), (8, 1, 3), (2, 2, 3), (1, 1, 5), (24, 3, 4), (4096, 512, 4), (2**32 + 16, 2, 4)],
)
def test_rows_are_for_their_ranks_and_nodes(tmp_path: Path, ranks: int, nodes: int, channels: int) -> None:
    table = rows_of(
        tmp_path,
        "allreduce ranks=16 nodes=2 -> ring/ll channels=1",
        "allreduce ranks=16 -> ring/ll channels=2",
        "allreduce ranks=2..8 nodes=..2 -> ring/ll channels=3",
        "allreduce ranks=9.. -> ring/ll channels=4",
        "allreduce nodes=1 -> ring/ll channels=5",
    )
    assert ask(table, 5, ranks=ranks, nodes=nodes).channels == channels


# What is written


def test_the_choice_wins_and_keeps_its_time(tmp_path: Path) -> None:
    table = rows_of(tmp_path, "allreduce -> ring/simple")
    answer = ask(table, 5)
    above = np.nextafter(np.float32(25), np.float32(math.inf), dtype=np.float32)
    expected = costs(
        Tree_LL=above, Tree_LL128=above, Tree_Simple=30, Ring_LL=40, Ring_LL128=above, Ring_Simple=25, NVLS_Simple=above
    )
    assert same_bits(answer.cost_us, expected)
    assert picked(answer.cost_us) == (Algorithm.Ring, Protocol.Simple)


def test_a_choice_that_is_nccls_own_changes_no_cell(tmp_path: Path) -> None:
    answer = ask(rows_of(tmp_path, "allreduce -> tree/ll128 channels=9"), 5)
    assert same_bits(answer.cost_us, TYPICAL)
    assert answer.channels == 9


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("protocol", Protocol)
def test_every_cell_wins_a_tie_in_any_order(tmp_path: Path, algorithm: Algorithm, protocol: Protocol) -> None:
    answer = ask(rows_of(tmp_path, f"allreduce -> {algorithm.name}/{protocol.name}"), 5, ALL_EQUAL)
    others = np.delete(answer.cost_us.ravel(), algorithm * len(Protocol) + protocol)
    assert answer.cost_us[algorithm, protocol] == 7
    assert (others > 7).all()
    assert np.isfinite(others).all()


def test_channels_not_given_are_not_written(tmp_path: Path) -> None:
    table = rows_of(tmp_path, "allreduce bytes=..9 -> ring/ll", "allreduce -> ring/ll channels=3")
    assert ask(table, 9, channels=17).channels == 17
    assert ask(table, 10, channels=17).channels == 3


def test_nothing_matches_nothing_written(tmp_path: Path) -> None:
    table = rows_of(tmp_path, "allreduce bytes=9.. -> ring/ll channels=3", "reduce -> ring/ll channels=3")
    assert untouched(ask(table, 8, channels=17), channels=17)


@pytest.mark.parametrize("time_us", [-1.0, -1024.0, -0.5, math.nan, math.inf, 3.6e9, 3e38])
def test_a_choice_that_nccl_would_not_take_has_no_effect(tmp_path: Path, time_us: float) -> None:
    table = rows_of(tmp_path, "allreduce -> nvls/simple channels=3", "allreduce -> ring/ll channels=4")
    cost_us = TYPICAL.copy()
    cost_us[Algorithm.NVLS, Protocol.Simple] = time_us
    assert untouched(ask(table, 5, cost_us, channels=17), cost_us, channels=17)


@pytest.mark.parametrize("time_us", [0.0, 1e-45, 1e-38, 1.1754944e-38, 1e-30, 3.5e9])
def test_a_choice_wins_at_any_time_nccl_takes(tmp_path: Path, time_us: float) -> None:
    table = rows_of(tmp_path, "allreduce -> ring/simple")
    cost_us = np.full(SHAPE, time_us, np.float32)
    cost_us[Algorithm.Tree] = [-0.0, math.nan, math.inf]
    answer = ask(table, 5, cost_us)
    assert picked(answer.cost_us) == (Algorithm.Ring, Protocol.Simple)
    assert answer.cost_us[Algorithm.Ring, Protocol.Simple].tobytes() == np.float32(time_us).tobytes()
    assert np.isnan(answer.cost_us[Algorithm.Tree, Protocol.LL128])
    assert np.isinf(answer.cost_us[Algorithm.Tree, Protocol.Simple])
    # A processor that reads denormals as 0 still sees the others above it.
    raised = answer.cost_us[Algorithm.PAT, Protocol.Simple]
    assert raised >= np.finfo(np.float32).tiny
    assert raised > np.float32(time_us)


CELL = st.one_of(
    st.just(-1.0),
    st.floats(0, 1e6, width=32),
    st.sampled_from([0.0, -0.0, 7.0, -1024.0, math.nan, math.inf, 3.6e9]),
)


@given(
    st.lists(CELL, min_size=21, max_size=21),
    st.sampled_from(Algorithm),
    st.sampled_from(Protocol),
    st.one_of(st.none(), st.integers(1, 64)),
)
def test_writes_what_it_should_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    cells: list[float],
    algorithm: Algorithm,
    protocol: Protocol,
    channels: int | None,
) -> None:
    row = Row(AR, algorithm, protocol, channels)
    before = np.array(cells, np.float32).reshape(SHAPE)
    answer = ask(rows_of(tmp_path_factory.mktemp("cells"), to_text(Table((row,))).splitlines()[2]), 5, before, nodes=1)
    own = before[algorithm, protocol]
    if not 0 <= own < np.float32(3.6e9):
        assert untouched(answer, before)
        return
    withheld = algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain)
    assert answer.channels == (0 if withheld or channels is None else channels)
    assert picked(answer.cost_us) == (algorithm, protocol)
    changed = before.view(np.uint32) != answer.cost_us.view(np.uint32)
    assert (changed == ((before >= 0) & (before <= answer.cost_us[changed].max(initial=-1)) & changed)).all()
    assert not changed[algorithm, protocol]
    assert (answer.cost_us[changed] > own).all()
    assert (before[changed] <= max(own, np.finfo(np.float32).tiny)).all()


@pytest.mark.parametrize("shape", [(7, 3), (6, 3), (9, 3), (7, 4), (5, 5)])
def test_the_table_is_flat_and_of_any_shape(tmp_path: Path, shape: tuple[int, int]) -> None:
    table = rows_of(tmp_path, "allreduce -> nvls/ll128")
    before = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    answer = ask(table, 5, before)
    own = before[Algorithm.NVLS, Protocol.LL128]
    above = np.nextafter(own, np.float32(math.inf), dtype=np.float32)
    expected = np.where(before <= own, above, before)
    expected[Algorithm.NVLS, Protocol.LL128] = own
    assert same_bits(answer.cost_us, expected)


@pytest.mark.parametrize("shape", [(4, 3), (0, 0), (7, 0), (7, 1), (1, 3)])
def test_a_choice_outside_the_table_has_no_effect(tmp_path: Path, shape: tuple[int, int]) -> None:
    table = rows_of(tmp_path, "allreduce -> nvls/ll128 channels=3")
    before = np.full(shape, 7, np.float32)
    assert untouched(ask(table, 5, before), before)


@pytest.mark.parametrize(
    ("choice", "nodes", "channels"),
    [
        ("collnetdirect/simple", 1, 0),
        ("collnetchain/simple", 2, 0),
        ("nvls/simple", 2, 0),
        ("nvls/simple", 1, 6),
        ("nvlstree/simple", 2, 6),
        ("ring/simple", 2, 6),
        ("pat/simple", 2, 6),
    ],
)
def test_channels_nccl_does_not_check_are_left_to_it(tmp_path: Path, choice: str, nodes: int, channels: int) -> None:
    table = rows_of(tmp_path, f"allreduce -> {choice} channels=6", f"reduce -> {choice}")
    with DryRun(table, ranks=16, nodes=nodes) as run:
        assert run.ask(TunerCall(AR, 5), ALL_EQUAL).channels == channels
    assert any("1 choice sets channels for CollNet" in line.text for line in run.log) == (channels == 0)


def test_the_constants_stay_as_they_are(tmp_path: Path) -> None:
    with DryRun(rows_of(tmp_path, "allreduce -> ring/ll"), ranks=16, nodes=2) as run:
        run.ask(TunerCall(AR, 5), TYPICAL)
    assert not run.constants.any()


NAMES = [name.name for name in Collective]


# What it says


def test_says_which_table_and_how_many_rows(tmp_path: Path) -> None:
    table = rows_of(
        tmp_path,
        "allreduce -> ring/ll",
        "reduce nodes=2 -> ring/ll",
        "reduce nodes=3.. -> ring/ll",
        "reduce ranks=8 -> ring/ll",
    )
    digest = hashlib.sha256(table.read_bytes()).hexdigest()[:12]
    assert log_of(table) == [
        (INFO, f"table {table} (sha256 {digest}): 4 rows, 2 of them for 16 ranks on 2 nodes, commId 0x1")
    ]


@pytest.mark.parametrize("length", [19, 54, 55, 56, 63, 64, 65, 119, 120, 127, 128, 129, 1000, 100_000])
def test_the_hash_is_sha256(tmp_path: Path, length: int) -> None:
    content = f"{HEADER}\n{'#' * (length - 20)}\n"[:length].encode()
    assert len(content) == length
    assert f"(sha256 {hashlib.sha256(content).hexdigest()[:12]})" in log_of(table_of(tmp_path, content))[0][1]


def test_says_at_the_end_how_often_it_decided(tmp_path: Path) -> None:
    table = rows_of(tmp_path, "allreduce bytes=..9 -> ring/ll", "allreduce bytes=10..19 -> pat/ll")
    with DryRun(table, ranks=16, nodes=2) as run:
        for size in (1, 2, 3, 10, 11, 20):
            run.ask(TunerCall(AR, size), TYPICAL)
    text = run.log[-1].text
    assert text.endswith("6 calls: 3 decided by the table, 0 with its costs, 2 matched a row that NCCL cannot run here")
    assert run.log[-1].level == INFO
    assert "line 2 decides for the first time here" in run.log[1].text
    assert len(run.log) == 3


@pytest.mark.parametrize("name", [None, ""])
def test_without_a_table_there_is_one_line(name: str | None) -> None:
    with DryRun(name, ranks=16, nodes=2) as run:
        assert untouched(run.ask(TunerCall(AR, 5), TYPICAL))
    assert [(line.level, line.text) for line in run.log] == [
        (INFO, "TUNER/nccl-tuner: NCCL_TUNER_TABLE is not set: every choice is NCCL's own")
    ]


def test_a_relative_path_is_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of(tmp_path, "allreduce -> ring/ll channels=3")
    monkeypatch.chdir(tmp_path)
    assert f"table {tmp_path}/test.table (" in log_of("test.table")[0][1]
    assert ask(Path("test.table"), 5).channels == 3
    monkeypatch.chdir("/")
    ((level, text),) = log_of("test.table")
    assert level == WARN
    assert text == "/test.table: No such file or directory; there is no table (NCCL_TUNER_TABLE=test.table)"


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert log_of("test.table")[0][1].startswith("test.table: No such file or directory; there is no table")
    os.chdir(tmp_path)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device", "below a file", "too large", "name too long"])
def test_a_file_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    reason = "not a regular file"
    if kind == "missing":
        reason = "No such file or directory"
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/null")
    elif kind == "below a file":
        path = table_of(tmp_path, HEADER) / "x"
        reason = "Not a directory"
    elif kind == "too large":
        path.touch()
        os.truncate(path, (16 << 20) + 1)
        reason = "larger than 16777216 bytes"
    else:
        path = tmp_path / ("x" * 5000)
        reason = "File name too long"
    ((level, text),) = log_of(path)
    assert level == WARN
    assert f": {reason}; there is no table (NCCL_TUNER_TABLE=" in text
    assert untouched(ask(path, 5))


def test_leaves_no_file_open(tmp_path: Path) -> None:
    tables = (rows_of(tmp_path, "allreduce -> ring/ll"), table_of(tmp_path, b"", "empty"), tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for table in tables * 10:
        log_of(table)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    content = (HEADER.encode() + b"\n").ljust(16 << 20, b"\n")
    assert "0 rows" in log_of(table_of(tmp_path, content))[0][1]


def test_a_long_path_leaves_room_for_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "/".join(["d" * 200] * 6)
    folder.mkdir(parents=True)
    table = table_of(folder, f"{HEADER}\nallreduce -> ring/xx\n", "last.table")
    text = log_of(table)[0][1]
    assert text.startswith("...ddd")
    assert "ddd/last.table:2: unknown protocol 'xx'" in text
    assert len(text) < 900


def test_a_name_is_not_read_as_a_format(tmp_path: Path) -> None:
    assert f"{tmp_path}/%s%n%s.table:1: empty" in log_of(table_of(tmp_path, "", "%s%n%s.table"))[0][1]


# Many communicators


def test_many_communicators_with_different_tables_at_once(tmp_path: Path) -> None:
    tables = []
    for index in range(8):
        folder = tmp_path / str(index)
        folder.mkdir()
        tables.append(rows_of(folder, f"allreduce bytes={index}.. -> ring/ll channels={index + 1}"))
    wrong: list[object] = []

    def work(index: int) -> None:
        for _ in range(20):
            with DryRun(tables[index], ranks=16, nodes=2) as run:
                got = [run.ask(TunerCall(AR, size), TYPICAL).channels for size in range(12)]
            if got != [index + 1 if size >= index else 0 for size in range(12)] or "12 calls" not in run.log[-1].text:
                wrong.append((index, got, run.log))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
