"""Flight Recorder dumps of a job's ranks, held against each other (the form of PyTorch 2.13's recorder)."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import CASES
from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.findings import Finding, Severity, words
from tuner.jobs.traces.recorder_comparison import findings_of

Call = tuple[int, str, int, int, str, str]  # number, name, elements of input and of output, type, state
DONE, RUNS, WAITS = "completed", "started", "scheduled"


def reduced(number: int, elements: int = 1024, dtype: str = "Float", state: str = DONE) -> Call:
    return number, "all_reduce", elements, elements, dtype, state


def write(folder: Path, dumps: Mapping[int, list[Call]], ranks: int | None = None) -> list[Path]:
    """One dump a rank, of one process group of ``ranks``, those with a dump where it is not given."""
    members = list(range(ranks)) if ranks else sorted(dumps)
    files = []
    for rank, calls in dumps.items():
        entries = [
            {
                "record_id": place,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number,
                "profiling_name": f"nccl:{name}",
                "input_sizes": [[sent]],
                "input_dtypes": [dtype],
                "output_sizes": [[received]],
                "output_dtypes": [dtype],
                "state": state,
                "is_p2p": False,
            }
            for place, (number, name, sent, received, dtype, state) in enumerate(calls)
        ]
        group = {"0": {"name": "0", "desc": "default_pg", "ranks": str(members)}}
        value = {"version": "2.10", "pg_config": group, "entries": entries}
        files.append(folder / f"nccl_trace_rank_{rank}")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_bytes(pickle.dumps(value, protocol=2))
    return files


def verdict(found: list[Finding]) -> tuple[str, Severity]:
    order = list(Severity)
    worst = min(found, key=lambda each: order.index(each.severity))
    return worst.code.partition(".")[2], worst.severity


SAME = [reduced(1), reduced(2), reduced(3)]


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        ([*SAME[:2], (3, "_all_gather_base", 256, 1024, "Float", RUNS)], "other_collective"),
        ([*SAME[:2], reduced(3, 2048)], "other_size"),
        ([*SAME[:2], reduced(3, dtype="BFloat16")], "other_type"),
    ],
)
@given(rank=st.integers(0, 6))
def test_the_rank_that_differs_from_most_is_named(
    tmp_path_factory: pytest.TempPathFactory, odd: list[Call], code: str, rank: int
) -> None:
    dumps = {each: odd if each == rank else SAME for each in range(7)}
    found = findings_of(write(tmp_path_factory.mktemp("dumps"), dumps))
    assert verdict(found) == (code, Severity.FAULT)
    assert (found[0].facts["ranks"], found[0].facts["clear"], found[0].facts["tie"]) == ([rank], True, False)
    assert words(found[0]).endswith(f"these differ: rank {rank}.")


def test_where_as_many_ranks_say_either_both_are_named(tmp_path: Path) -> None:
    dumps = {rank: [reduced(1, 8 if rank < 2 else 16)] for rank in range(4)}
    found = findings_of(write(tmp_path, dumps))
    assert found[0].facts["tie"]
    assert "ranks 0, 1: 8 and ranks 2, 3: 16" in words(found[0])


def test_the_first_number_that_differs_is_named_and_not_its_echoes(tmp_path: Path) -> None:
    odd = [reduced(1), reduced(2, 8), reduced(3, 4)]
    found = findings_of(write(tmp_path, {0: SAME, 1: odd, 2: SAME}))
    assert [each.facts["number"] for each in found if each.code == "recorder.other_size"] == [2]


@pytest.mark.parametrize("name", ["_all_gather_base", "_reduce_scatter_base"])
def test_unequal_parts_that_are_the_whole_together_are_right(tmp_path: Path, name: str) -> None:
    """PyTorch gathers and scatters parts of unequal size; a whole that they do not make is a fault."""
    parts = {0: 100, 1: 200, 2: 300}

    def calls(whole: int) -> dict[int, list[Call]]:
        sides = {rank: (part, whole) if "gather" in name else (whole, part) for rank, part in parts.items()}
        return {rank: [(1, name, *side, "Float", DONE)] for rank, side in sides.items()}

    assert verdict(findings_of(write(tmp_path / "right", calls(600)))) == ("alike", Severity.NOTE)
    odd = calls(600)
    odd[1] = calls(601)[1]
    assert verdict(findings_of(write(tmp_path / "wrong", odd)))[0] == "other_size"


@pytest.mark.parametrize(("received", "code"), [(30, "alike"), (31, "uneven_split")])
def test_an_all_to_all_receives_what_it_sends(tmp_path: Path, received: int, code: str) -> None:
    dumps = {0: [(1, "all_to_all", 10, received, "Float", DONE)], 1: [(1, "all_to_all", 50, 30, "Float", DONE)]}
    assert verdict(findings_of(write(tmp_path, dumps)))[0] == code


def test_a_rank_that_did_not_start_what_others_did_is_named(tmp_path: Path) -> None:
    dumps = {rank: [reduced(1), reduced(2, state=WAITS if rank == 3 else RUNS)] for rank in range(4)}
    found = findings_of(write(tmp_path, dumps))
    assert verdict(found) == ("not_started", Severity.FAULT)
    assert found[0].facts["ranks"] == [3]


def test_a_number_that_a_rank_lacks_between_others_is_a_gap(tmp_path: Path) -> None:
    dumps = {rank: [reduced(each) for each in range(1, 6) if (rank, each) != (2, 3)] for rank in range(4)}
    found = findings_of(write(tmp_path, dumps))
    assert verdict(found) == ("gap", Severity.UNKNOWN)
    assert (found[0].facts["ranks"], found[0].facts["number"]) == ([2], 3)


def test_buffers_that_begin_apart_are_compared_where_they_overlap(tmp_path: Path) -> None:
    dumps = {0: [reduced(each) for each in range(5, 9)], 1: [reduced(each) for each in range(7, 9)]}
    assert verdict(findings_of(write(tmp_path, dumps))) == ("alike", Severity.NOTE)


def test_a_folder_for_each_host_is_one_job(tmp_path: Path) -> None:
    calls = [reduced(1), reduced(2, state=RUNS)]
    write(tmp_path / "a", {0: calls, 1: calls}, ranks=4)
    write(tmp_path / "b", {2: calls, 3: calls[:1]}, ranks=4)
    done = run("diagnose", str(tmp_path), code=1)
    assert "rank 3 did not make the call in which others wait" in done.stdout
    assert "4 ranks with a dump" in done.stdout


def test_two_dumps_of_one_rank_are_refused(tmp_path: Path) -> None:
    files = write(tmp_path / "a", {0: SAME, 1: SAME}) + write(tmp_path / "b", {0: SAME})
    with pytest.raises(BadInput, match="are both dumps of rank 0"):
        findings_of(files)


RIGHT: dict[str, tuple[str, Severity, dict[str, Any]]] = {
    "other-collective": ("other_collective", Severity.FAULT, {"ranks": [0]}),
    "other-size": ("other_size", Severity.FAULT, {"ranks": [2]}),
    "missing-number": ("gap", Severity.UNKNOWN, {"ranks": [2], "number": 3}),
    "states": ("not_started", Severity.FAULT, {"ranks": [3], "number": 3}),
    "buffers-begin-apart": ("alike", Severity.NOTE, {}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_collected_dumps_are_judged_rightly(name: str) -> None:
    if not (CASES / "reports" / "FR").is_dir():
        pytest.skip("../shared/cases is absent")
    code, severity, facts = RIGHT[name]
    found = findings_of(sorted((CASES / "reports" / "FR" / name).iterdir()))
    assert verdict(found) == (code, severity)
    assert facts.items() <= found[0].facts.items()


def over_gloo(folder: Path, dumps: Mapping[int, list[Call]], retired: Mapping[int, set[int]]) -> list[Path]:
    """As PyTorch 2.13 writes them over gloo: the group has no name, and calls that ended are ``retired``."""
    files = write(folder, dumps)
    for rank, file in zip(dumps, files, strict=True):
        value = pickle.loads(file.read_bytes())
        value["pg_config"] = {"": {**value["pg_config"]["0"], "name": "", "desc": ""}}
        for entry in value["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
            entry |= {"state": WAITS, "retired": entry["collective_seq_id"] in retired[rank]}
        file.write_bytes(pickle.dumps(value, protocol=2))
    return files


def test_dumps_of_a_job_over_gloo(tmp_path: Path) -> None:
    ended = {0: {1, 2, 3}, 1: {1, 2, 3}}
    assert verdict(findings_of(over_gloo(tmp_path / "a", {0: SAME, 1: SAME}, ended))) == ("alike", Severity.NOTE)
    lacks = over_gloo(tmp_path / "b", {0: SAME, 1: SAME[:2]}, {0: {1, 2}, 1: {1, 2}})
    (behind,) = [each.facts for each in findings_of(lacks) if each.code == "recorder.behind"]
    assert (behind["rank"], behind["number"]) == (1, 3)


def test_dumps_that_say_no_ranks_of_any_group_cannot_be_judged(tmp_path: Path) -> None:
    files = write(tmp_path, {0: SAME, 1: SAME})
    for file in files:
        file.write_bytes(pickle.dumps({**pickle.loads(file.read_bytes()), "pg_config": {}}, protocol=2))
    found = findings_of(files)
    assert verdict(found) == ("no_calls", Severity.UNKNOWN)
    assert all(map(words, found))
