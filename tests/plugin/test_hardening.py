"""The plugin's C code against wrong input, under the sanitizers, valgrind and libFuzzer: ``csrc/plugin/check``."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from tests.support.programs import CHECKS, PLUGIN, ROOT, checker, clang, compiled, compiler, sanitized_object
from tests.support.training_job import hostile_files
from tuner.jobs.inside.files import Untimed, read_file

FUZZERS = ["table", "call", "events"]
SEEDS = CHECKS / "seeds" / "table"

TABLE = (SEEDS / "ours.table").read_bytes()


def drive(command: Sequence[str | Path], table: Path | None = None, **env: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NCCL_")}
    environment["TSAN_OPTIONS"] = f"suppressions={CHECKS / 'thread_sanitizer.supp'}"
    environment |= env | ({"NCCL_TUNER_TABLE": str(table)} if table else {})
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-8000:]
    return ran.stdout


def table_of(folder: Path, content: bytes) -> Path:
    path = folder / "test.table"
    path.write_bytes(content)
    return path


def sanitized(which: str) -> list[str]:
    return ["-O1", f"-fsanitize={which}", "-fno-sanitize-recover=all"]


@pytest.fixture
def checked() -> Path:
    return checker("driver", sanitized("address,undefined"))


@pytest.fixture
def plain() -> Path:
    return checker("driver", ["-O1"])


@pytest.fixture
def threaded() -> Path:
    return checker("driver", sanitized("thread"))


# Random tables and calls, held against a scan of the rows


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.hypothesis  # so that `make explore` runs it, with many more
@pytest.mark.parametrize("seed", range(4))
def test_random_tables_under_the_sanitizers(checked: Path, seed: int, explores: bool) -> None:
    count = 25000 if explores else 8000
    assert f"{count} tables" in drive([checked, "bytes", str(seed), str(count)])


@pytest.mark.each_choice
@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("seed_file", sorted(SEEDS.iterdir()), ids=lambda path: path.name)
@pytest.mark.parametrize("unchecked", ["0", "1"])
def test_random_calls_under_the_sanitizers(checked: Path, seed_file: Path, unchecked: str) -> None:
    for seed in range(4):
        drive([checked, "calls", str(seed), "10000"], seed_file, NCCL_TUNER_UNCHECKED=unchecked)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"", b"nccl-tuner-table 1", b"nccl-tuner-table 1\nallreduce -> ring", b"\0"])
def test_a_bad_table_leaks_nothing(checked: Path, tmp_path: Path, content: bytes | None) -> None:
    drive([checked, "calls", "1", "100"], tmp_path / "no" if content is None else table_of(tmp_path, content))


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("unchecked", ["0", "1"])
def test_many_threads_under_the_thread_sanitizer(threaded: Path, tmp_path: Path, unchecked: str) -> None:
    drive([threaded, "threads", "1", "200"], table_of(tmp_path, TABLE), NCCL_TUNER_UNCHECKED=unchecked)


SANITIZERS = ["address,undefined", "thread"]


@pytest.mark.parametrize("failing", [[], ["-DNEXT_FAILS"]], ids=["answers nothing", "fails"])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_another_tuner_under_the_sanitizers(tmp_path: Path, sanitizer: str, failing: list[str]) -> None:
    """Where it is asked the driver's checks hold as without it, and all that it began is ended."""
    program = checker("driver", sanitized(sanitizer))
    shared = ["-std=c11", "-g", "-fPIC", "-shared", "-fvisibility=hidden", str(CHECKS / "next.c")]
    other = compiled(compiler(), [*sanitized(sanitizer), *failing, *shared], suffix=".so")
    table = table_of(tmp_path, TABLE)
    for words in (["calls", "1", "2000"], ["threads", "1", "20"]):
        said = drive([program, *words], table, NCCL_TUNER_NEXT=str(other))
        asked = [int(line.split()[1]) for line in said.splitlines() if line.startswith("asked")]
        assert sum(asked) > 1000


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_whole_sequences_while_files_are_replaced(tmp_path: Path, sanitizer: str, explores: bool) -> None:
    """`make soak` runs the same for longer: all communicators of a size and version decide alike."""
    said = drive([checker("soak", sanitized(sanitizer)), tmp_path, "60" if explores else "3", "1"])
    assert re.search(r"\d+ lives, \d+ communicators, .*: nothing found", said)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind here")
@pytest.mark.parametrize("words", [("bytes", "1", "300"), ("calls", "1", "1000"), ("threads", "1", "20")])
def test_valgrind_finds_nothing(plain: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    memcheck = ["valgrind", "--quiet", "--error-exitcode=1", "--leak-check=full", "--show-leak-kinds=all"]
    drive([*memcheck, "--errors-for-leak-kinds=all", plain, *words], table_of(tmp_path, TABLE))


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["-DSHA256_PORTABLE"]])
def test_the_hash_with_and_without_the_processors_own_instructions(flags: list[str]) -> None:
    program = checker("driver", ["-O1"], more={"sha256.c": flags})
    for length in [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 60000]:
        content = bytes(number * 7 % 251 for number in range(length))
        said = subprocess.run([program, "hash"], input=content, capture_output=True, check=True).stdout
        assert said.decode().strip() == hashlib.sha256(content).hexdigest()


# What communicators share


COUNTED = ["-O1", "-fsanitize-coverage=trace-pc"]  # counts basic blocks


def shares(table: Path, *words: str, flags: Sequence[str] = tuple(COUNTED)) -> str:
    program = checker("sharing", flags, link=["-Wl,--wrap=file_read"])
    done = subprocess.run(
        [program, *words], env={"NCCL_TUNER_TABLE": str(table)}, capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout


def large_table(folder: Path, rows: int) -> Path:
    """Rows side by side, of 17 classes of pipelined operations."""
    classes = ["..0", *map(str, range(1, 16)), "16.."]
    return table_of(
        folder,
        "".join(
            [
                "nccl-tuner-table 1\n",
                *(
                    f"allreduce bytes={at * 5000}..{at * 5000 + 4999} pipelined={classes[at % 17]} -> ring/ll\n"
                    for at in range(rows)
                ),
            ]
        ).encode(),
    )


@pytest.mark.heavy
@pytest.mark.slow
def test_communicators_of_one_size_share_what_is_built(tmp_path: Path) -> None:
    said = shares(large_table(tmp_path, 100_000), "memory", "20")
    assert int(said.split()[0]) / 20 < 1024  # KiB of one: its counters, 8 bytes a row; it was 34 MiB


@pytest.mark.heavy
@pytest.mark.slow
def test_closed_communicators_of_many_sizes_keep_nothing(tmp_path: Path) -> None:
    """Rules of one size at most stay when nobody uses them: it was 3.9 MiB for each of 60 sizes."""
    said = shares(large_table(tmp_path, 100_000), "sizes", "20")
    assert int(said.split()[0]) < 12 * 1024  # KiB


@pytest.mark.heavy
@pytest.mark.slow
def test_a_fork_while_other_threads_create_communicators(tmp_path: Path) -> None:
    assert shares(large_table(tmp_path, 1000), "fork", "200") == "0 stuck\n"


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("flags", [COUNTED, sanitized("thread")], ids=["plain", "thread sanitizer"])
def test_threads_decide_alike_while_the_file_is_replaced(tmp_path: Path, flags: list[str]) -> None:
    """Eight communicators begin at once, and each one's thread reads another content: one of them decides for all."""
    assert shares(tmp_path / "test.table", "replaced", "20", flags=flags) == "0 apart\n"


def test_a_large_table_is_read_once_and_in_steps_as_many_as_rows(tmp_path: Path) -> None:
    def work(rows: int) -> list[tuple[int, int]]:
        said = shares(large_table(tmp_path, rows), "work")
        return [(int(reads), int(blocks)) for reads, blocks in map(str.split, said.splitlines())]

    (few_reads, few_blocks), _ = work(10_000)
    (reads, blocks), (reads_again, blocks_again) = work(100_000)
    assert (few_reads, reads, reads_again) == (1, 1, 0)
    assert blocks > 100_000
    assert blocks < 13 * few_blocks  # rows are sorted: n log n
    assert blocks_again < blocks / 50


# What a call may reach

CALLS = [
    "get_coll_info_v1",
    "get_coll_info_v2",
    "get_coll_info_v3",
    "get_coll_info_v4",
    "get_chunk_size",
]
# What a call says once for each row; and where it waits, once in a communicator's life, for what rank 0 has decided.
EXCEPTIONS = ("counters_say_first", "explorer_wait")


def linked(named: str) -> list[Path]:
    """The plugin's sources compiled; of one's functions, which are static, with names to link from.

    What runs when the process ends is not taken for something that a call reaches.
    """
    flags = ["-std=c11", "-O2", "-ffunction-sections", "-fdata-sections", "-Ddestructor=noinline", "-c"]
    return [
        compiled(compiler(), [*flags, *(["-Dstatic="] if source.stem == named else []), source], suffix=".o")
        for source in sorted(PLUGIN.glob("*.c"))
    ]


def outside(folder: Path, function: str, source: str = "adapters") -> set[str]:
    """The functions of other libraries that one of a source may reach: the linker drops what it cannot."""
    reached = folder / "reached.o"
    wrapped = "".join(f",--wrap={name}" for name in EXCEPTIONS)
    start = ["-nostdlib", "-r", f"-Wl,--gc-sections{wrapped},--entry={function},--undefined={function}"]
    subprocess.run([compiler(), *start, *linked(source), "-o", reached], check=True)
    with reached.open("rb") as file:
        sections = list(ELFFile(file).iter_sections())
        symbols = next(each for each in sections if isinstance(each, SymbolTableSection))
        used = [
            symbols.get_symbol(each["r_info_sym"])
            for section in sections
            if isinstance(section, RelocationSection)
            for each in section.iter_relocations()
            if each["r_info_sym"]
        ]  # 0: what was dropped
        return {symbol.name for symbol in used if symbol["st_shndx"] == "SHN_UNDEF"}


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("function", CALLS)
def test_a_call_can_neither_allocate_nor_block(tmp_path: Path, function: str) -> None:
    assert outside(tmp_path, function) <= {"memcpy", "memset", *(f"__wrap_{name}" for name in EXCEPTIONS)}
    assert {"malloc", "open", "getenv"} <= outside(tmp_path, "init_v5"), "what init reaches is seen"


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("function", ["start_v3", "start_v4", "start_v5", "stop_v3", "stop", "record"])
def test_an_event_can_neither_allocate_nor_block(tmp_path: Path, function: str) -> None:
    reached = outside(tmp_path, function, "profiler")
    assert reached <= {"memcpy", "memset", "strcmp", "clock_gettime", "__wrap_explorer_wait"}
    assert {"calloc", "open", "getenv"} <= outside(tmp_path, "init_v5", "profiler"), "what init reaches is seen"


@pytest.mark.heavy
@pytest.mark.slow
def test_the_thread_that_writes_reads_no_variable(tmp_path: Path) -> None:
    """The program may set one meanwhile, which moves all of them."""
    reached = outside(tmp_path, "write_on", "profiler")
    assert {"rename", "pwrite"} <= reached
    assert "getenv" not in reached


# The profiler


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("words", [("random", "1", "300000"), ("threads", "1", "3000")])
def test_events_under_the_sanitizers(tmp_path: Path, words: tuple[str, ...]) -> None:
    program = checker("events", sanitized("address,undefined"))
    drive([program, *words], NCCL_TUNER_JOB=str(tmp_path / "job"), NCCL_TUNER_JOB_SECONDS="1")
    assert list((tmp_path / "job").glob("*.job"))


@pytest.mark.heavy
@pytest.mark.slow
def test_events_under_the_thread_sanitizer(tmp_path: Path) -> None:
    program = checker("events", sanitized("thread"))
    drive([program, "threads", "1", "1000"], NCCL_TUNER_JOB=str(tmp_path / "job"), NCCL_TUNER_JOB_SECONDS="1")
    assert list((tmp_path / "job").glob("*.job"))


@pytest.mark.heavy
@pytest.mark.slow
def test_calls_as_fast_as_a_gpu_ends_them_are_not_lost(tmp_path: Path) -> None:
    """An H200 ended calls of 8 B at 30,000 a second; at 25,000 a busy computer may wake the writer 160 ms late.

    Where it wakes it later, calls are lost by right, and counted: so one run of five has to lose none.
    """
    lost = []
    for run in range(5):
        drive([checker("events", ["-O2"]), "rate", "25000", "25000"], NCCL_TUNER_JOB=str(tmp_path / str(run)))
        (file,) = map(read_file, (tmp_path / str(run)).glob("*.job"))
        assert int(file.communicators["finished"].sum()) + file.lost == 25_000
        lost.append(file.lost)
        if not file.lost:
            break
    assert lost[-1] == 0, lost


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["0", "400"])
def test_a_rank_that_is_bound_and_then_sends_to_itself_explores_with_the_others(pairs: str, tmp_path: Path) -> None:
    """NCCL says there that a kernel has ended before it has: it is no sign of what rank 0 has launched."""
    said = drive([checker("events", ["-O2"]), "bound", pairs], NCCL_TUNER_JOB=str(tmp_path / "job"))
    assert said.split() == ["explores"] * 3


@pytest.mark.heavy
@pytest.mark.slow
def test_of_thousands_of_communicators_the_first_are_measured_and_the_log_says_so_once(tmp_path: Path) -> None:
    said = drive([checker("events", ["-O2"]), "many", "3000"], NCCL_TUNER_JOB=str(tmp_path), NCCL_DEBUG="WARN")
    assert said.count("too many communicators") == len(said.splitlines()) == 1
    (path,) = tmp_path.glob("*.job")
    assert path.stat().st_size < 1 << 20
    assert len(read_file(path).communicators) == 1024


@pytest.mark.heavy
@pytest.mark.slow
def test_processes_of_one_number_on_one_host_write_files_of_their_own(tmp_path: Path) -> None:
    """As in containers that share the host's name, each with a process 1, which begin within a second."""
    program = checker("events", ["-O2"])
    environment = {**os.environ, **hostile_files("process"), "NCCL_TUNER_JOB": str(tmp_path)}
    started = [subprocess.Popen([program, "marks", "c"], env=environment) for _ in range(5)]
    assert [each.wait(60) for each in started] == [0] * 5
    assert [int(read_file(path).pid) for path in tmp_path.glob("*.job")] == [1] * 5


T, GRAPHS, SELF, GROUP, OVERLAP = 0, *(-each for each in Untimed)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("ccc", [T] * 3),
        ("cgc", [T, GROUP, GROUP, T]),
        ("ckc", [T] * 4),
        ("ccxcc", [T, T, GRAPHS, GRAPHS, GRAPHS]),
        ("ccscc", [T, T, SELF, SELF, SELF]),
        ("ccl" + "c" * 70, [T, T, *[OVERLAP] * 65, *[T] * 6]),
        ("ccl" + "c" * 62, [T, T, *[OVERLAP] * 63]),
        ("ccl", [T] * 3),  # nothing shows it
        ("cclx" + "c" * 70, [T, T, T, *[GRAPHS] * 71]),
    ],
)
def test_a_call_whose_time_may_be_anothers_has_none(calls: str, expected: list[int], tmp_path: Path) -> None:
    drive([checker("events", ["-O2"]), "marks", calls], NCCL_TUNER_JOB=str(tmp_path / "job"))
    (file,) = map(read_file, (tmp_path / "job").glob("*.job"))
    records = np.sort(file.records(), order="sequence")
    assert [int(us) if us < 0 else T for us in records["time_us"]] == expected
    assert (records["time_us"][records["time_us"] >= 0] == 0.5).all()
    assert [(int(kind["calls"]), float(kind["sum_us"])) for kind in file.kinds] == [
        (expected.count(T), expected.count(T) / 2)
    ]


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("folder", ["job", "file/job"])
@pytest.mark.parametrize("flags", [["-O2"], *map(sanitized, SANITIZERS)], ids=["plain", *SANITIZERS])
def test_a_process_ends_well_after_it_has_closed_nccl(flags: list[str], folder: str, tmp_path: Path) -> None:
    """What is not written yet is, with NCCL's words; where it cannot be, NCCL's logger is called at the end.

    A process may have two NCCLs: a framework's own, and another one.
    """
    source = Path(__file__).parents[1] / "support" / "closed_library.c"
    shared = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{PLUGIN}"]
    library = compiled(compiler(), [*shared, source], suffix=".so")
    other = shutil.copy(library, tmp_path / "other.so")
    (tmp_path / "file").touch()
    program = checker("events", flags)
    said = drive([program, "closed", library, other], NCCL_TUNER_JOB=str(tmp_path / folder), NCCL_DEBUG="INFO")
    assert ("not written" in said.partition("closed\n")[2]) == (folder == "file/job"), said
    if folder == "job":
        (file,) = map(read_file, (tmp_path / "job").glob("*.job"))
        assert [(kind["function"], kind["protocol"], kind["calls"]) for kind in file.kinds] == [
            (b"AllReduce", b"SIMPLE", 1)
        ] * 2


@pytest.mark.heavy
@pytest.mark.slow
def test_a_file_of_many_calls_has_the_same_ones_on_all_ranks_and_stays_below_1_mib(tmp_path: Path) -> None:
    program = checker("events", ["-O2"])
    drive([program, "threads", "1", "8000"], NCCL_TUNER_JOB=str(tmp_path / "job"), NCCL_TUNER_JOB_SECONDS="1")
    (path,) = (tmp_path / "job").glob("*.job")
    assert path.stat().st_size < 1 << 20
    assert [each.name for each in path.parent.iterdir()] == [path.name], "nothing half-written stays"
    file = read_file(path)
    assert file.thinned > 0
    assert int(file.kinds["calls"].sum()) == int(file.communicators["finished"].sum()) > 50_000
    kept = {int(number) for number in file.records()["sequence"]}
    assert kept <= {number for number in range(8000) if mixed(number) % 2**file.thinned == 0}
    assert len(kept) > 0.5 * 8000 / 2**file.thinned  # but for those that the plugin had no room for


def mixed(number: int) -> int:
    """What of a call's number says whether it is kept."""
    for shift, factor in ((31, 0x7FB5D329728EA185), (27, 0x81DADEF4BC2DD44D)):
        number = (number ^ number >> shift) * factor % 2**64
    return number ^ number >> 33


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind here")
def test_a_launch_costs_a_few_hundred_instructions(tmp_path: Path) -> None:
    """300 ns of the thread that launches are some 1,000; what NCCL's own thread sees of a kernel is said apart."""

    def instructions(what: str) -> int:
        tool = ["valgrind", "--tool=callgrind", "--toggle-collect=check_cost", f"--callgrind-out-file={tmp_path}/out"]
        command: list[str | Path] = [*tool, checker("events", ["-O3"]), what, "4000"]
        env = {**os.environ, "NCCL_TUNER_JOB": str(tmp_path / "job")}
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
        return int(re.findall(r"Collected : (\d+)", said)[0])

    launch = (instructions("launch") - instructions("nothing")) / 4000
    channel = (instructions("cost") - instructions("launch")) / 4000 / 16
    assert launch < 600
    assert channel < 250


# What Python calls

OTHER_PICKS = """
import sys
from pathlib import Path
import pytest
from tuner.emulator import compiled as picks
from tuner.engines import lookup
from tuner.graphs import compiled as graphs
graphs.shared_object = lookup.shared_object = lambda name: Path(sys.argv[1])
picks.LIBRARY = Path(sys.argv[1])
ended = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *sys.argv[2:]])
assert sys.argv[1] in Path("/proc/self/maps").read_text()
sys.exit(ended)
"""


@pytest.mark.heavy
@pytest.mark.slow
def test_the_search_and_look_ups_under_the_sanitizers(tmp_path: Path) -> None:
    """Tests that hold C against Python."""
    picks, variables = sanitized_object("picks", tmp_path)
    asked = [
        "tests/unit/test_search.py::test_c_searches_random_topologies_as_python_does",
        "tests/golden/test_pick_tables.py::test_one_size_gets_what_an_array_gets",
        "tests/golden/test_pick_tables.py::test_what_is_no_size_is_refused_as_before",
        "tests/unit/test_engines.py::test_a_table_of_numbers_says_what_it_was_made_from",
        "tests/unit/test_engines.py::test_what_is_no_size_is_refused_in_arrays",
    ]
    command = [sys.executable, "-c", OTHER_PICKS, str(picks), *asked]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


# What a call takes, counted by callgrind


ASKED = 1 << 15  # calls of the benchmark


def object_of(*flags: str) -> Path:
    words = ["-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong", *flags]
    return compiled(compiler(), [*words, *sorted(PLUGIN.glob("*.c"))], suffix=".so")


def taken(folder: Path, plugin: Path, rows: int) -> tuple[float, float]:
    """Instructions of a call, and lines that are in no cache of 32 KiB; the benchmark's loop included."""
    words: list[str | Path] = ["-std=c11", "-O2", "-g", "-rdynamic", CHECKS / "bench.c", CHECKS / "source.c", "-ldl"]
    tool: list[str | Path] = [
        "valgrind",
        "--tool=callgrind",
        "--toggle-collect=ask_again",
        f"--callgrind-out-file={folder}/out",
    ]
    caches = ["--cache-sim=yes", "--D1=32768,8,64", "--I1=32768,8,64", "--LL=1048576,16,64"]
    command = [*tool, *caches, compiled(compiler(), words), plugin, str(rows)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    counts = [re.search(rf"{what} *: +([0-9,]+)", said) for what in ("I +refs", "D1 +misses")]
    instructions, misses = (int(count[1].replace(",", "")) / ASKED for count in counts if count)
    return instructions, misses


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind here")
def test_a_call_takes_few_instructions_and_its_counts_fewer(tmp_path: Path) -> None:
    counting, without = object_of(), object_of("-DCOUNTERS_COUNT_NOTHING")
    few, _ = taken(tmp_path, counting, 10)
    many, lines = taken(tmp_path, counting, 20_000)
    assert few < 380  # 310
    assert many - few < 110  # three levels of the search, 72
    assert lines < 4.5  # the search's, both of the leaf, the row's count: 3.9
    few_without, _ = taken(tmp_path, without, 10)
    _, lines_without = taken(tmp_path, without, 20_000)
    assert 0 < few - few_without < 20  # 14
    assert 0 < lines - lines_without < 1.2


# libFuzzer; `make fuzz` runs the same for longer


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("name", FUZZERS)
def test_fuzz(tmp_path: Path, name: str) -> None:
    program = clang()
    if not program:
        pytest.skip("libFuzzer comes with clang, which is not here")
    flags = ["-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    fuzz = checker(f"fuzz_{name}", flags, program)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    more = [f"-dict={CHECKS / 'table.dict'}", corpus, SEEDS] if name == "table" else [corpus]
    # libFuzzer itself tells an input that hangs, with its stack: -timeout. What else hangs is the sanitizer.
    limits = ["-seed=1", "-runs=20000", "-max_total_time=60", "-max_len=512", "-timeout=60"]
    command = [fuzz, *limits, f"-artifact_prefix={tmp_path}/", *more]
    # Both were seen once each in some thousand runs, and not again; what has a reason in the plugin comes again.
    try:
        drive(command, NCCL_TUNER_JOB=str(tmp_path / "job"))
    except (subprocess.TimeoutExpired, AssertionError) as failure:
        if isinstance(failure, AssertionError) and "libFuzzer: out-of-memory" not in str(failure):
            raise
        drive(command, NCCL_TUNER_JOB=str(tmp_path / "again"))
