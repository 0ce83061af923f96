"""The ground: files that a user names, C's numeric steps, records as JSON, frames, dataclasses, breakpoints."""

import copy
import dataclasses
import gzip
import json
import os
import pickle
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import tuner
from tests.support.command_line import run
from tuner.answers.choices import choices
from tuner.base import breakpoints, files
from tuner.base.bounds import DECLARED, ReaderBounds
from tuner.base.dataclass import dataclass as late_dataclass
from tuner.base.errors import BadInput, BadTopology
from tuner.base.files import contents, read_bytes, recall_own, remember
from tuner.base.frames import Costs, Framed
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, DataType, Op, Protocol
from tuner.base.nouns import Span
from tuner.base.numerics import SizeArray, as_size_t, int32, log2i, log2i_array, parse_long, shortest
from tuner.base.records import from_json, json_form, to_json
from tuner.base.registry import Source, found_in, source_of
from tuner.base.sizes import as_ranges, from_ranges, size_bytes, size_list
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.graphs.graph_file import GraphFile
from tuner.machine.graphs import read_dump
from tuner.machine.topology import read
from tuner.plugin import compile
from tuner.release import load
from tuner.scenario import Scenario

PICK = ("pick", "allreduce", "--bytes", "1M", "--nccl", "2.28.9")
BOMB = (
    """<!DOCTYPE graphs [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><graphs version="1"><graph id="&b;"/></graphs>"""
)


def bounded(unpacked_bytes: int) -> ReaderBounds:
    made = ReaderBounds("a test's", unpacked_bytes=unpacked_bytes)
    DECLARED.remove(made)
    return made


def test_a_gzipped_file_is_unpacked_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TEXT", bounded(3 << 20))
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(bytes(3 << 20)))
    assert read_bytes(packed, BadInput) == bytes(3 << 20)
    packed.write_bytes(gzip.compress(bytes(2 << 20)) + gzip.compress(bytes((1 << 20) + 1)))  # two members
    with pytest.raises(
        BadInput, match=rf"^{packed}: too large: what it unpacks to; valid: up to 3 MiB, or NCCL_TUNER_BOUNDS=N"
    ):
        read_bytes(packed, BadInput)


def test_a_pipe_is_read_once_for_readers_with_other_bounds() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"all of it")
    os.close(writer)
    path = Path(f"/dev/fd/{reader}")
    assert [contents(path), contents(path, 9), contents(path, 1 << 20)] == [b"all of it"] * 3
    with pytest.raises(OSError, match="valid: up to 8 bytes"):
        contents(path, 8)
    os.close(reader)


@pytest.mark.parametrize("option", ["--topology", "--log"])
def test_what_unpacks_to_more_is_one_line_of_the_command(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "TEXT", bounded(64 << 20))
    packed = tmp_path / "bomb.gz"
    packed.write_bytes(gzip.compress(bytes(1 << 20)) * 100)
    tracemalloc.start()
    done = run(*PICK, option, str(packed), code=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20
    assert len(done.stderr.splitlines()) == 1
    assert str(packed) in done.stderr


def test_a_device_without_an_end_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadTopology, match=r"^/dev/zero: too large; valid: up to 4194304 bytes$"):
        read(Path("/dev/zero"))
    with pytest.raises(BadTopology, match=r"^/dev/zero: too large"):
        read_dump(Path("/dev/zero"))
    monkeypatch.setattr(files, "MOST_BYTES", 64 << 20)
    assert "/dev/zero: too large" in run(*PICK, "--log", "/dev/zero", code=2).stderr


def test_graphs_that_declare_entities_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "graphs.xml"
    file.write_text(BOMB)
    with pytest.raises(BadTopology, match=r"graphs\.xml:1: declares an entity"):
        read_dump(file)
    with pytest.raises(BadInput, match=r"^NCCL_GRAPH_FILE=x:1: declares an entity"):
        GraphFile("x", BOMB, load("2.28.9").search.dump)


def test_only_what_this_user_alone_could_have_written_is_his_own(tmp_path: Path) -> None:
    file = tmp_path / "kept" / "one"
    before = os.umask(0)
    try:
        remember(file, "1")
    finally:
        os.umask(before)
    assert recall_own(file) == "1"
    file.chmod(0o664)
    assert recall_own(file) is None
    file.chmod(0o602)
    assert recall_own(file) is None
    assert recall_own(tmp_path / "none") is None


def test_what_another_user_wrote_is_not_his_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(tmp_path / "one", "1")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert recall_own(tmp_path / "one") is None


@given(st.integers(0, 2**64 - 1))
def test_log2i_of_arrays_is_log2i(value: int) -> None:
    assert log2i_array(np.array([value], np.uint64)) == log2i_array(np.array([value, 1], np.uint64))[0] == log2i(value)


@pytest.mark.parametrize("exponent", range(64))
def test_log2i_at_powers_of_two(exponent: int) -> None:
    values = [2**exponent - 1, 2**exponent, 2**exponent + 1]
    wanted = [exponent - 1, exponent, exponent if exponent else 1]
    assert log2i_array(np.array(values, np.uint64)).tolist() == wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        (" 7x", 7),
        ("0x1f", 31),
        ("010", 8),
        ("0x", 0),
        ("abc", 0),
        ("+5", 5),
        ("09", 0),
        ("", 0),
    ],
)
def test_parse_long_is_strtoll(text: str, value: int) -> None:
    assert parse_long(text) == value


def test_int_products_wrap() -> None:
    assert int32(2**31) == -(2**31)
    assert int32(64 * 512 * 8 * 8192) == -(2**31)
    assert as_size_t(-1) == 2**64 - 1


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_shortest_reads_back_to_the_same_float32(value: float) -> None:
    single = np.float32(value)
    assert np.float32(shortest(single)) == single


class Word(IntEnum):
    one = 1


class Text(StrEnum):
    two = "second"


@dataclass(frozen=True, slots=True)
class Inner:
    word: Word
    time_us: float | None


@dataclass(frozen=True, slots=True)
class Outer:
    inner: tuple[Inner, ...]
    beside: Inner = field(metadata=json_form(merged=True))
    requested: int = field(metadata=json_form("asked"))
    secret: int = field(metadata=json_form(omitted=True))
    text: Any = field(metadata=json_form(convert=str))
    path: Path | None = None


def test_records_become_dictionaries_in_the_order_of_their_fields() -> None:
    record = Outer((Inner(Word.one, None),), Inner(Word.one, 2.5), 3, 4, (5,), Path("a/b"))
    made = to_json(record)
    assert made == {
        "inner": [{"word": "one", "time_us": None}],
        "word": "one",
        "time_us": 2.5,
        "asked": 3,
        "text": "(5,)",
        "path": "a/b",
    }
    assert list(made) == ["inner", "word", "time_us", "asked", "text", "path"]


def test_values_stay_what_they_are() -> None:
    assert to_json({Word.one: [1, True, None, "x"], "a": (Text.two,)}) == {"one": [1, True, None, "x"], "a": ["second"]}
    assert to_json({"array": np.array([1, 2]), "number": np.float64(0.5)}) == {"array": [1, 2], "number": 0.5}
    assert type(to_json(np.int64(3))) is int


def test_what_has_no_form_is_an_error() -> None:
    with pytest.raises(TypeError, match="object has no form in JSON"):
        to_json([object()])


@dataclass(frozen=True)
class Kept:
    by_number: Mapping[int, tuple[Inner, ...]]
    pair: tuple[int, str]
    texts: Sequence[Text]
    inner: Inner = field(metadata=json_form(merged=True))
    more: list[int] | None = None


def test_records_come_back_by_their_types() -> None:
    inner = Inner(Word.one, 2.5)
    for kept in (
        Kept({7: (inner,), 8: ()}, (1, "a"), (Text.two,), inner),
        Kept({}, (1, "a"), (), Inner(Word.one, None), [3, 4]),
    ):
        written = json.loads(json.dumps(to_json(kept)))
        assert from_json(Kept, written) == kept
        del written["word"]
        with pytest.raises(KeyError):
            from_json(Kept, written)


SIZES = np.array([8, 65536, 1 << 20, 1 << 28], np.uint64)
H100 = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")


def both(framed: Framed) -> tuple[Any, Any]:
    pandas_frame, polars_frame = framed.to_pandas(), framed.to_polars()
    assert isinstance(pandas_frame, pandas.DataFrame)
    assert isinstance(polars_frame, polars.DataFrame)
    assert list(pandas_frame.columns) == polars_frame.columns
    return pandas_frame, polars_frame


def test_picks_are_rows() -> None:
    picks = H100.pick("allreduce", SIZES)
    for frame in both(picks):
        assert list(frame["bytes"]) == SIZES.tolist()
        assert list(frame["algorithm"]) == [Algorithm(each).name for each in picks.algorithm]
        assert list(frame["protocol"]) == [Protocol(each).name for each in picks.protocol]
        for name in ("channels", "threads", "time_us"):
            assert list(frame[name]) == list(getattr(picks, name))
    assert picks.to_pandas()["time_us"].dtype == picks.to_polars()["time_us"].to_numpy().dtype == np.float32


def test_edges_are_rows() -> None:
    edges = H100.edges("allreduce")
    for frame in both(edges):
        assert len(frame) == len(edges) > 50
        assert list(frame["from_bytes"][1:]) == [last + 1 for last in frame["to_bytes"][:-1]]
        assert list(frame["protocol"]) == [Protocol(each).name for each in edges.protocol]
        assert list(frame["channels"]) == edges.channels.tolist()


def test_words_are_categories() -> None:
    picks = H100.pick("allreduce", SIZES)
    names = [algorithm.name for algorithm in Algorithm]
    assert picks.to_pandas()["algorithm"].cat.categories.tolist() == names
    assert picks.to_polars()["algorithm"].dtype == polars.Enum(names)


def test_a_cost_table_has_a_row_for_every_candidate() -> None:
    table = H100.cost_table("allreduce", SIZES)
    for frame in both(Costs(SIZES, table)):
        assert len(frame) == (table >= 0).sum() == len(SIZES) * 7
        rows = zip(frame["bytes"], frame["algorithm"], frame["protocol"], frame["time_us"], strict=True)
        for size, algorithm, protocol, time_us in rows:
            row = SIZES.tolist().index(size)
            assert table[row, Algorithm[algorithm], Protocol[protocol]] == np.float32(time_us)
    assert len(Costs(8, H100.cost_table("allreduce", 8)).to_polars()) == 7


def test_a_cost_table_of_other_sizes_is_refused() -> None:
    with pytest.raises(BadInput, match=r"shape \(4, 7, 3\), not \[3 sizes\]"):
        Costs(SIZES[:3], H100.cost_table("allreduce", SIZES)).to_pandas()


def test_tables_have_a_row_for_every_cell() -> None:
    tables = H100.tables
    for frame in both(tables):
        assert len(frame) == len(Collective) * len(ALGO_PROTOS)
        rows = zip(*(frame[name] for name in frame.columns), strict=True)
        for collective, algorithm, protocol, latency_us, bandwidth_gbs, threads, threshold, reason in rows:
            algo_proto = Algorithm[algorithm], Protocol[protocol]
            at = Collective[collective], *algo_proto
            assert (latency_us, bandwidth_gbs) == (tables.latency_us[at], tables.bandwidth_gbs[at])
            assert (threads, threshold) == (tables.max_threads[algo_proto], tables.thread_thresholds_bytes[algo_proto])
            assert (None if reason is None or reason != reason else reason) == tables.reasons.get(at)


def test_choices_are_rows_and_nothing_is_absent() -> None:
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
    sizes = np.array([8, 1 << 62], np.uint64)
    found = choices(scenario, Request(Collective.AllReduce, DataType.float32, Op.sum), sizes, [2, 3])
    for frame in both(found):
        assert list(frame["nodes"]) == [2, 2, 3, 3]
        assert list(frame["bytes"]) == [8, 1 << 62] * 2
        assert [name == "Tree" for name in frame["algorithm"]] == [True, False] * 2
    assert found.to_pandas()["protocol"].isna().tolist() == [False, True] * 2
    assert found.to_polars()["protocol"].is_null().to_list() == [False, True] * 2


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInput, match=f"{package} is not installed: pip install {package}"):
        getattr(H100.pick("allreduce", 8), f"to_{package}")()


@late_dataclass(frozen=True, slots=True)
class Late:
    """A record."""

    name: str
    size: int = 3
    parts: tuple[int, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False, repr=False, kw_only=True)


@late_dataclass(frozen=True, slots=True)
class Later(Late):
    """One with a field more, which it checks."""

    last: float = 0.5

    def __post_init__(self) -> None:
        assert self.last > 0


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """The same record by the standard library."""

    name: str
    size: int = 3
    parts: tuple[int, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False, repr=False, kw_only=True)


GIVEN: list[Callable[[Any], Any]] = [
    lambda kind: kind("a"),
    lambda kind: kind("a", 4),
    lambda kind: kind(size=5, name="b", note="n"),
    lambda kind: kind("a", 3, (1, 2), note="m"),
]


@pytest.mark.parametrize("make", GIVEN)
def test_objects_are_as_the_standard_librarys(make: Callable[[Any], Any]) -> None:
    ours, other = make(Late), make(Plain)
    assert repr(ours) == repr(other).replace("Plain", "Late")
    assert dataclasses.asdict(ours) == dataclasses.asdict(other)
    assert [ours == each(Late) for each in GIVEN] == [other == each(Plain) for each in GIVEN]
    assert all(hash(ours) == hash(each(Late)) for each in GIVEN if each(Late) == ours)
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == dataclasses.replace(ours) == ours
    assert dataclasses.replace(ours, size=9).size == 9
    assert ours != other


def test_a_field_cannot_be_set_nor_deleted() -> None:
    record = Late("a")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'size'"):
        record.size = 4
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'size'"):
        del record.size
    assert record.size == 3


def test_wrong_arguments_are_refused() -> None:
    several: list[Any] = [{}, {"name": "a", "sise": 1}]
    for wrong in several:
        with pytest.raises(TypeError, match=r"__init__\(\) (missing|got an unexpected)"):
            Late(**wrong)


def test_a_subclass_has_its_own_fields_and_checks() -> None:
    assert Later("a", last=0.25) != Late("a")
    assert repr(Later("a")) == "Later(name='a', size=3, parts=(), last=0.5)"
    with pytest.raises(AssertionError):
        Later("a", last=-1)


def test_one_that_may_change_has_no_hash() -> None:
    @late_dataclass(slots=True)
    class Changing:
        count: int = 0

    changing = Changing()
    changing.count = 2
    assert changing == Changing(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(changing)


def test_one_in_order_is_compared_by_its_fields_and_with_its_own_class_only() -> None:
    @late_dataclass(frozen=True, slots=True, order=True)
    class Pair:
        first: int
        second: str = "a"

    assert sorted([Pair(2), Pair(1, "b"), Pair(1)]) == [Pair(1), Pair(1, "b"), Pair(2)]
    assert (Pair(1) < Pair(2), Pair(1) <= Pair(1), Pair(1) > Pair(2), Pair(2) >= Pair(1)) == (True, True, False, True)
    other: Any = (1, "a")
    with pytest.raises(TypeError, match="not supported between"):
        assert Pair(1) < other


def test_one_by_keywords_takes_nothing_by_its_place() -> None:
    @late_dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        size: int = 3
        name: str

    assert (Named(name="a").size, Named(size=1, name="a").size) == (3, 1)
    wrong: Any = Named
    with pytest.raises(TypeError, match="positional argument"):
        wrong(1, "a")


def steps(*at: int) -> breakpoints.Labels:
    def labels(sizes: SizeArray) -> NDArray[np.int64]:
        return np.searchsorted(np.array(at, np.uint64), sizes, side="right")

    return labels


@pytest.mark.parametrize(
    "at", [(), (2,), (2, 3, 4), (1000, 1001), (2**24 + 1,), (2**40 + 3,), (2**53 + 1, 2**60 + 1, 2**62)]
)
def test_finds_every_step(at: tuple[int, ...]) -> None:
    assert breakpoints.find(steps(*at), 1, 2**62).tolist() == [1, *at]


def test_a_step_at_a_break_that_would_hide() -> None:
    hidden = 2**30 + 2**20 + 12345  # there and back within a sixteenth
    assert breakpoints.find(steps(hidden, hidden + 1), 1, 2**62).tolist() == [1, hidden, hidden + 1]

    def there_and_back(sizes: SizeArray) -> NDArray[np.int64]:
        return np.asarray(steps(hidden, hidden + 1)(sizes) % 2, np.int64)

    assert breakpoints.find(there_and_back, 1, 2**62, [hidden]).tolist() == [1, hidden, hidden + 1]


def test_ends_belong_to_it() -> None:
    assert breakpoints.find(steps(7, 9), 7, 9).tolist() == [7, 9]
    assert breakpoints.find(steps(7, 10), 7, 9).tolist() == [7]


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_span_holds_both_of_its_ends_and_nothing_beyond(one: int, other: int) -> None:
    low, high = sorted((one, other))
    around = (low - 1, low, (low + high) // 2, high, high + 1)
    assert [number in Span(low, high) for number in around] == [False, True, True, True, False]
    assert [number in Span(low) for number in around] == [False, True, True, True, True]


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_units_of_sizes_are_what_they_say(power: int) -> None:
    unit = "KMGT"[power - 1]
    for binary in (unit, unit.lower(), f"{unit}iB", f"{unit.lower()}ib"):
        assert size_bytes(f"3{binary}") == 3 * 1024**power
    assert size_bytes(f"3{unit}B") == 3 * 1000**power
    assert size_bytes(f"1.5{unit}") == 3 * 1024**power // 2
    assert size_bytes("7") == size_bytes("7B") == 7


def test_a_range_of_sizes_has_both_of_its_ends() -> None:
    assert size_list("8..64") == size_list("8..64*2") == [8, 16, 32, 64]
    assert size_list("8..63") == [8, 16, 32]
    assert size_list("8..8") == [8]
    assert size_list("1K..4K+1K,5") == [1024, 2048, 3072, 4096, 5]


@given(st.sets(st.integers(0, 300), min_size=1))
def test_numbers_are_read_back_from_their_ranges(numbers: set[int]) -> None:
    assert from_ranges(as_ranges(sorted(numbers)), "ranks") == tuple(sorted(numbers))


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((4,), "4"),
        ((0, 1), "0-1"),
        ((0, 2), "0,2"),
        ((0, 2, 4), "0-4:2"),
        ((0, 1, 2, 3, 8, 16, 24, 25), "0-3,8-24:8,25"),
    ],
)
def test_equal_steps_are_said_as_a_range(numbers: tuple[int, ...], said: str) -> None:
    assert as_ranges(numbers) == said


def test_a_rule_has_the_source_of_the_newest_release_that_is_not_later() -> None:
    @found_in(Source("a.cc", "one", "2.18.1"), Source("b.cc", "two", "2.20.3"), Source("c.cc", "three", "2.28.9"))
    def rule() -> None:
        pass

    held = {nccl: source_of(rule, nccl).file for nccl in ("2.18.1", "2.19.4", "2.20.3", "2.28.8", "2.28.9", "2.32.3")}
    assert list(held.values()) == ["a.cc", "a.cc", "b.cc", "b.cc", "c.cc", "c.cc"]
    with pytest.raises(LookupError, match=r"rule has no source in NCCL 2\.17\.1"):
        source_of(rule, "2.17.1")


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize(
    ("nccl", "machine", "nodes", "gpus"),
    [
        ("2.28.9", "dgx-h100", 2, 8),
        ("2.28.9", "dgx-b200", 1, 8),
        ("2.21.5", "dgx-a100", 2, 2),
        ("2.32.3", "dgx-b200", 1, 8),
    ],
)
@pytest.mark.parametrize("collective", [Collective.AllReduce, Collective.AllGather])
def test_no_size_is_decided_otherwise(nccl: str, machine: str, nodes: int, gpus: int, collective: Collective) -> None:
    """Every size to 4 MiB, and every float32 of 2**24 to 2**26 and around each edge, where roundings meet."""
    selection = Selection(Scenario(nccl=nccl, machine=machine, nodes=nodes, gpus_per_node=gpus).communicator())
    rows = compile.decisions(selection, [collective])
    starts = np.array([max(row.bytes.low, 1) for row in rows], np.uint64)
    around = np.concatenate([np.arange(max(int(s) - 50_000, 1), int(s) + 50_000, dtype=np.uint64) for s in starts])
    sizes = np.concatenate(
        [
            np.arange(1, 4 << 20, dtype=np.uint64),
            np.arange(1 << 24, 1 << 26, 8, dtype=np.uint64),
            around,
        ]
    )
    wanted = np.array([[*one.choices[0].algo_proto] for one in rows], np.int8)
    for part in np.array_split(sizes, 64):  # what is computed of a part stays in the processor's cache
        with np.errstate(divide="ignore"):  # channels of calls smaller than their type, which are none
            picks = selection.pick(compile.request(collective), part)
        row = np.searchsorted(starts, part, side="right") - 1
        assert (wanted[row, 0] == picks.algorithm).all()
        assert (wanted[row, 1] == picks.protocol).all()
    assert len(rows) > 1
