"""Arms of a table inside a job, under the real libnccl: what runs is what the schedule says, on every rank."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support import training_job
from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tests.support.training_job import Planted, Ran, hostile_files
from tuner.base.names import Algorithm, Protocol
from tuner.jobs.inside import joined
from tuner.jobs.inside.decide import decide
from tuner.times.measured.samples import Combination

COUNTING = [name for name in HERE if tuple(map(int, name.split(".")[:2])) >= (2, 28)]
BEFORE = [name for name in HERE if (2, 24) <= tuple(map(int, name.split(".")[:2])) <= (2, 27)]
NEWEST = COUNTING[-1]
COUNTS_NOT_EACH = [name for name in COUNTING if tuple(map(int, name.split(".")[:2])) <= (2, 30)]  # launch of a kernel
EVERY, BLOCK, FIRST = 3, 10, 512
TREE, RING = (Combination(Algorithm.Tree, Protocol.Simple, 8), Combination(Algorithm.Ring, Protocol.LL128, 16))
ARMS = [TREE, RING, None]
ARMS_TEXT = "tree/simple channels=8 | ring/ll128 channels=16 | nccl"
ROW = f"allreduce bytes=1M.. -> explore {ARMS_TEXT} every={EVERY} block={BLOCK}"
LARGE = 1 << 20  # elements: 4 MiB
AGREE = "sleep 2.0"  # ranks do by the first of their rounds then, however busy this computer is

pytestmark = [pytest.mark.live, pytest.mark.slow]


def scheduled(count: int) -> Combination | None:
    """The arm of a call by its number; written apart from the plugin's own."""
    block = count // BLOCK
    at = block // EVERY
    mixed = ((at ^ at >> 15) * 0x9E3779B97F4A7C15) % 2**64
    return ARMS[at % len(ARMS)] if (mixed >> 32) % EVERY == block % EVERY else None


def explored(folder: Path, script: list[str] | Mapping[int, list[str]], name: str = NEWEST, **given: object) -> Ran:
    table = folder / "explore.table"
    table.write_text(f"nccl-tuner-table 1\n{ROW}\n")
    ranks = int(given.pop("ranks", 3))  # type: ignore[call-overload]
    script = {rank: [AGREE, *own] for rank, own in script.items()} if isinstance(script, Mapping) else [AGREE, *script]
    variables = {"NCCL_TUNER_TABLE": str(table)}
    return training_job.run(folder, name, ranks, script, Planted(skew_us=20), **{**variables, **given})  # type: ignore[arg-type]


def ran(folder: Path) -> dict[tuple[int, int], list[tuple[int, Combination, int]]]:
    """By communicator and rank: number, combination and bytes of each call, as each rank's own file has them."""
    found: dict[tuple[int, int], list[tuple[int, Combination, int]]] = {}
    for file in joined.read_folder(folder / "job").files:
        kinds = dict(zip(file.places, file.kinds, strict=True))
        for record in file.records():
            kind = kinds[record["kind"]]
            one = file.communicators[kind["communicator"]]
            call = joined.job_call(kind, int(one["ranks"]))
            assert call is not None
            assert call.executed is not None
            where = int(one["id"]), int(one["rank"])
            found.setdefault(where, []).append((int(record["sequence"]), call.executed, call.bytes))
    return {where: sorted(calls, key=lambda call: call[0]) for where, calls in found.items()}


def arms_of(calls: list[tuple[int, Combination, int]]) -> list[tuple[int, Combination]]:
    return [(number, executed) for number, executed, _ in calls if executed in (TREE, RING)]


def same_on_all_ranks(folder: Path) -> dict[int, list[tuple[int, Combination, int]]]:
    """By communicator; fails where ranks ran different things."""
    by_communicator: dict[int, list[list[tuple[int, Combination, int]]]] = {}
    for (communicator, _), calls in ran(folder).items():
        by_communicator.setdefault(communicator, []).append(calls)
    for ranks in by_communicator.values():
        assert all(calls == ranks[0] for calls in ranks), "ranks ran different things"
    return {communicator: ranks[0] for communicator, ranks in by_communicator.items()}


def logged(done: Ran) -> list[str]:
    """NCCL's lines of what it chose, which rank 0 alone writes."""
    return [line for line in done.outputs[0].splitlines() if "Bytes -> Algo" in line]


@pytest.mark.parametrize("name", COUNTING)
def test_what_runs_is_what_the_schedule_says(name: str, tmp_path: Path, draws: Draws) -> None:
    count = 1000 * draws.times
    done = explored(tmp_path, [f"allreduce {LARGE} {count}", "sleep 0.2"], name, timeout_s=120.0 + count / 20)
    assert done.codes == [0] * 3, done.outputs
    (calls,) = same_on_all_ranks(tmp_path).values()
    assert [number for number, _, _ in calls] == list(range(count))
    expected = [(n, arm) for n in range(FIRST, count) if (arm := scheduled(n)) is not None]
    assert len(expected) > (count - FIRST) / 6
    assert arms_of(calls) == expected


def test_groups_estimates_and_other_calls_do_not_part_ranks(tmp_path: Path) -> None:
    """Ranks that estimate, which asks the tuner as often as they like, and ranks that do not."""
    common = [f"group 4 {LARGE}", "allreduce 1024 20", f"allreduce {LARGE} 7"]
    estimating = [f"simulate {LARGE}", *common, f"simulate {LARGE}", f"simulate {LARGE}"]
    done = explored(tmp_path, {0: common * 60, 1: estimating * 60, 2: common * 60})
    assert done.codes == [0] * 3, done.outputs
    (calls,) = same_on_all_ranks(tmp_path).values()
    assert len(calls) == 60 * 31
    assert {executed for _, executed in arms_of(calls)} == {TREE, RING}
    taken = set()
    for start in range(0, len(calls), 31):  # in a group, whose calls share channels, all have the arm of its first
        arm = scheduled(start) if start >= FIRST else None
        group = {executed.algo_proto for _, executed, _ in calls[start : start + 4]}
        assert group == {arm.algo_proto if arm else (Algorithm.Ring, Protocol.Simple)}
        taken |= group
    assert len(taken) == 3


def test_communicators_of_some_ranks_explore_by_their_own_counts(tmp_path: Path) -> None:
    """Also where ranks make other calls than others between: each communicator counts for itself."""
    script = {
        rank: ["split 2", AGREE, f"allreduce {LARGE} {700 if rank % 2 else 900}", "world", f"allreduce {LARGE} 600"]
        for rank in range(4)
    }
    done = explored(tmp_path, script, ranks=4)
    assert done.codes == [0] * 4, done.outputs
    found = same_on_all_ranks(tmp_path)
    assert sorted(map(len, found.values())) == [600, 700, 900]
    for calls in found.values():
        expected = [(n, arm) for n in range(FIRST, len(calls)) if (arm := scheduled(n)) is not None]
        assert arms_of(calls) == expected


def test_a_call_in_a_graph_ends_exploring(tmp_path: Path) -> None:
    script = [f"allreduce {LARGE} 700", f"capture {LARGE}", f"allreduce {LARGE} 200", "sleep 0.2"]
    done = explored(tmp_path, script, NCCL_DEBUG_SUBSYS="COLL,TUNING,INIT")
    assert done.codes == [0] * 3, done.outputs
    chosen = logged(done)
    assert len(chosen) == 901
    assert "Algo TREE" in "".join(chosen[512:700])
    assert "Algo TREE" not in "".join(chosen[700:])
    assert "proto LL128" not in "".join(chosen[700:])
    for calls in ran(tmp_path).values():
        assert 20 < len(arms_of(calls)) == len([1 for number, _ in arms_of(calls) if number < 700])


WITHOUT = {
    "plugin": {"NCCL_TUNER_PLUGIN": "none"},
    "profiler": {"NCCL_PROFILER_PLUGIN": "none"},
    "table": {"NCCL_TUNER_TABLE": "/nowhere/explore.table"},
    "folder": {"NCCL_TUNER_JOB": ""},
}


@pytest.mark.parametrize("missing", WITHOUT)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_without_something_has_nobody_explore(missing: str, rank: int, tmp_path: Path) -> None:
    done = explored(
        tmp_path,
        [f"allreduce {LARGE} 1000", "sleep 0.2"],
        each={rank: WITHOUT[missing]},
        NCCL_DEBUG_SUBSYS="COLL,TUNING,INIT",
    )
    assert done.codes == [0] * 3, done.outputs
    chosen = "".join(logged(done))
    assert chosen.count("Algo RING proto SIMPLE") == 1000
    files = ran(tmp_path)
    assert len(files) >= (1 if missing == "folder" else 2)
    assert not any(arms_of(calls) for calls in files.values())
    assert not list((tmp_path / "job").glob(".explore.*")) or (missing, rank) == ("folder", 0)


@pytest.mark.parametrize("name", [*COUNTS_NOT_EACH[-1:], NEWEST])
@pytest.mark.parametrize("sends", [1, 60])
def test_ranks_explore_unless_one_sends_too_often_to_itself(name: str, sends: int, tmp_path: Path) -> None:
    """Up to 2.30 NCCL may say there that a kernel has ended before it has, and what ranks agree on rests on that."""
    count = FIRST + 90
    own = ["selfsend 1024"] * sends
    script = {
        each: [*own * (each == 1), f"allreduce {LARGE} 20", AGREE, f"allreduce {LARGE} {count}"] for each in (0, 1)
    }
    table = tmp_path / "explore.table"
    table.write_text(f"nccl-tuner-table 1\n{ROW}\n")
    done = training_job.run(tmp_path, name, 2, script, NCCL_TUNER_TABLE=str(table))
    assert done.codes == [0, 0], done.outputs
    (calls,) = same_on_all_ranks(tmp_path).values()
    explores = sends == 1 or name == NEWEST
    expected = [(n, arm) for n in range(FIRST, 20 + count) if explores and (arm := scheduled(n)) is not None]
    assert arms_of(calls) == expected
    assert ("not all ranks are there to explore" in done.outputs[0]) != explores


def test_nothing_that_an_earlier_start_left_is_believed(tmp_path: Path) -> None:
    """With NCCL_COMM_ID communicators of all starts have one id, and here all starts one folder."""
    script = [f"allreduce {LARGE} 600", "sleep 0.2"]
    same = {"NCCL_COMM_ID": "127.0.0.1:29771"}
    done = explored(tmp_path, script, **same)
    assert done.codes == [0] * 3, done.outputs
    assert all(map(arms_of, ran(tmp_path).values()))
    for file in (tmp_path / "job").glob("*.job"):
        file.unlink()
    done = explored(tmp_path, script, each={1: WITHOUT["table"]}, **same)
    assert done.codes == [0] * 3, done.outputs
    files = ran(tmp_path)
    assert len(files) == 3
    assert not any(map(arms_of, files.values()))
    assert not list((tmp_path / "job").glob(".explore.*")), "what ranks agree by is left"
    (communicator,) = {communicator for communicator, _ in files}
    os.mkfifo(tmp_path / "job" / f".explore.{communicator:016x}")  # a pipe holds nobody either
    done = explored(tmp_path, script, **same)
    assert done.codes == [0] * 3, done.outputs
    assert "no room to agree on exploring" in done.outputs[0]
    assert len(ran(tmp_path)) == 3


def test_a_rank_with_another_table_has_nobody_explore(tmp_path: Path) -> None:
    other = tmp_path / "other.table"
    other.write_text(f"nccl-tuner-table 1\n{ROW.replace('block=10', 'block=11')}\n")
    done = explored(tmp_path, [f"allreduce {LARGE} 1000"], each={2: {"NCCL_TUNER_TABLE": str(other)}})
    assert done.codes == [0] * 3, done.outputs
    (calls,) = same_on_all_ranks(tmp_path).values()
    assert not arms_of(calls)


@pytest.mark.parametrize("name", BEFORE[-1:])
def test_a_release_that_does_not_say_enough_does_not_explore(name: str, tmp_path: Path) -> None:
    done = explored(tmp_path, [f"allreduce {LARGE} 800"], name)
    assert done.codes == [0] * 3, done.outputs
    assert "1 row explores, which needs NCCL 2.28 or later" in done.outputs[0]
    (calls,) = same_on_all_ranks(tmp_path).values()
    assert not arms_of(calls)


def test_a_rank_that_is_killed_leaves_files_that_can_be_read(tmp_path: Path) -> None:
    script = {
        rank: [f"allreduce {LARGE} 900", "sleep 1.5", "kill 2", *(["sleep 1.5", "leave"] * (rank < 2))]
        for rank in range(3)
    }
    done = explored(tmp_path, script, timeout_s=60)
    assert done.codes[2] == -9
    (calls,) = same_on_all_ranks(tmp_path).values()
    assert np.array_equal([number for number, _, _ in calls], np.arange(900))
    assert len(arms_of(calls)) > 50


def test_a_communicator_that_was_aborted_and_made_anew_explores_again(tmp_path: Path) -> None:
    """As after an asynchronous error: all ranks abort in the middle of exploring, and begin anew."""
    script = [f"allreduce {LARGE} 700", "abort", "again", AGREE, f"allreduce {LARGE} 650", "sleep 0.2"]
    done = explored(tmp_path, script)
    assert done.codes == [0] * 3, done.outputs
    found = sorted(same_on_all_ranks(tmp_path).values(), key=len)
    assert [len(calls) for calls in found] == [650, 700]
    for calls in found:
        assert arms_of(calls) == [(n, arm) for n in range(FIRST, len(calls)) if (arm := scheduled(n)) is not None]


MORE = f"allreduce {LARGE} 650"
FIRST_600 = f"allreduce {LARGE} 600"
# Of ranks 0 and 2, of rank 1, and how many calls each communicator has that not all ranks leave in the middle.
CHANGES = {
    "nothing blocks, shrinks and grows": (
        ["nonblocking", "again", AGREE, FIRST_600, "shrink 1", AGREE, MORE, "grow", AGREE, f"allreduce {LARGE} 700"],
        ["nonblocking", "again", AGREE, FIRST_600, "shrink 1", "grow", AGREE, f"allreduce {LARGE} 700"],
        [600, 650, 700],
    ),
    "nothing blocks, splits in the middle": (
        two := ["nonblocking", "again", AGREE, FIRST_600, "split 2", AGREE, MORE, "world", f"allreduce {LARGE} 60"],
        two,
        [650, 660],  # and of rank 1 alone, which launches nothing
    ),
    "nothing blocks, fails on one rank": (
        anew := ["nonblocking", "again", AGREE, FIRST_600, f"failing {LARGE}", "abort", "again", AGREE, MORE],
        anew,
        [600, 650],
    ),
    "fails on one rank, which is left out": (
        [FIRST_600, f"failing {LARGE}", "shrink 1 1", AGREE, MORE, "sleep 1.5", "leave"],
        [FIRST_600, f"failing {LARGE}", "sleep 1.5", "leave"],
        [600, 650],
    ),
    "is revoked, and shrinks": (
        [FIRST_600, "revoke", "shrink 1", AGREE, MORE, "sleep 1.5", "leave"],
        [FIRST_600, "revoke", "sleep 1.5", "leave"],
        [600, 650],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_communicators_that_change_explore_by_their_own_counts(change: str, tmp_path: Path) -> None:
    others, second, counts = CHANGES[change]
    done = explored(tmp_path, {0: others, 1: second, 2: others}, timeout_s=90)
    assert done.codes == [0] * 3, done.outputs
    least: dict[int, int] = {}
    for (communicator, _), calls in ran(tmp_path).items():
        assert [number for number, _, _ in calls] == list(range(len(calls)))
        assert arms_of(calls) == [(n, arm) for n in range(FIRST, len(calls)) if (arm := scheduled(n)) is not None]
        least[communicator] = min(least.get(communicator, len(calls)), len(calls))
    assert sorted(least.values()) == counts


def test_an_abort_while_ranks_agree_holds_nobody(tmp_path: Path) -> None:
    """Rank 1 is bound and knows nothing yet: its files cannot be read."""
    script = ["sleep 0.6", "abort", "again", f"allreduce {LARGE} 50", "sleep 0.2"]
    done = explored(tmp_path, script, timeout_s=60)
    assert done.codes == [0] * 3, done.outputs


@pytest.mark.parametrize(
    ("rank", "how", "explores"),
    [
        (0, "hang 600", False),  # as long as the job: nobody waits for it
        (0, "full", False),
        (0, "yes 5", True),  # all wait for rank 0, whose word others may have read or not
        (0, "unsure 5", True),
        (1, "hang 5", True),  # it does not go on before it knows
    ],
)
def test_ranks_do_not_part_where_files_fail_in_the_middle(rank: int, how: str, explores: bool, tmp_path: Path) -> None:
    script = [f"allreduce {LARGE} 900", "sleep 0.2"]
    done = explored(tmp_path, script, each={rank: hostile_files(how)})
    assert done.codes == [0] * 3, done.outputs
    files = list(ran(tmp_path).values())
    if how != "hang 600":  # whose thread writes nothing any more
        assert len(files) == 3
    assert all(calls == files[0] for calls in files), "ranks ran different things"
    expected = [(n, arm) for n in range(FIRST, 900) if (arm := scheduled(n)) is not None]
    assert arms_of(files[0]) == (expected if explores else [])


ON_NFS = {
    "keeps what it reads until files are opened": ["nfs 0"] * 3,
    "keeps it for long": ["nfs 30"] * 3,
    "has errors of input and output": ["nfs-broken 5"] * 3,
    "has a rank say its word twice": ["", "nfs-again 4", "hang 5"],  # the last one reads late what rank 0 has decided
}


@pytest.mark.parametrize("how", ON_NFS)
def test_ranks_do_not_part_as_clients_of_nfs(how: str, tmp_path: Path) -> None:
    each = {rank: hostile_files(mode) for rank, mode in enumerate(ON_NFS[how]) if mode}
    done = explored(tmp_path, [f"allreduce {LARGE} 900", "sleep 0.2"], each=each)
    assert done.codes == [0] * 3, done.outputs
    files = list(ran(tmp_path).values())
    assert len(files) == 3
    assert all(calls == files[0] for calls in files), "ranks ran different things"
    assert arms_of(files[0]) == [(n, arm) for n in range(FIRST, 900) if (arm := scheduled(n)) is not None]


def test_communicators_made_in_another_order_explore_by_their_own_counts(tmp_path: Path) -> None:
    """Of two halves of the ranks one makes its own communicator before that of all, the other one after it."""
    own, world = ["again 2", AGREE, f"allreduce {LARGE} 600"], ["again", AGREE, f"allreduce {LARGE} 650"]
    done = explored(tmp_path, {rank: own + world if rank % 2 else world + own for rank in range(4)}, ranks=4)
    assert done.codes == [0] * 4, done.outputs
    found = same_on_all_ranks(tmp_path).values()
    assert sorted(map(len, found)) == [600, 600, 650]
    for calls in found:
        assert arms_of(calls) == [(n, arm) for n in range(FIRST, len(calls)) if (arm := scheduled(n)) is not None]


@pytest.mark.parametrize("variable", ["NCCL_TUNER_JOB", "NCCL_ALLGATHERV_ENABLE"])
@pytest.mark.parametrize("name", {NEWEST, *(name for name in COUNTING if name == "2.30.7")})
def test_a_variable_that_one_rank_loses_parts_nobody(name: str, variable: str, tmp_path: Path) -> None:
    """NCCL has one mask of events for all communicators of a process: without it this rank would count no more."""
    lost, rest = f"unset {variable}", ["again 2", "world", f"allreduce {LARGE} 200", "sleep 0.2"]
    script = {rank: [FIRST_600, *[lost] * (rank == 0), *rest] for rank in range(4)}
    done = explored(tmp_path, script, name, ranks=4, NCCL_DEBUG_SUBSYS="COLL,TUNING,INIT")
    assert done.codes == [0] * 4, done.outputs
    expected = [(n, arm) for n in range(FIRST, 800) if (arm := scheduled(n)) is not None]
    assert [number for number, line in enumerate(logged(done)) if "Algo TREE" in line] == [
        number for number, arm in expected if arm == TREE
    ], "rank 0 took other arms"
    (calls,) = same_on_all_ranks(tmp_path).values()
    assert arms_of(calls) == expected


def test_the_decision_finds_what_was_planted(tmp_path: Path) -> None:
    """Ring/LL128 is a tenth faster beside computation than what NCCL picks; of Tree only the kernels are."""
    times = {(-1, 0, 2): (80.0, 8.0), (-1, 1, 1): (90.0, 9.0), (-1, -1, -1): (100.0, 10.0)}
    table = tmp_path / "explore.table"
    table.write_text(f"nccl-tuner-table 1\n{ROW}\n")
    planted = Planted(times, skew_us=30, noise_percent=10)
    script = [AGREE, f"allreduce {LARGE} 3000", "sleep 0.2"]
    done = training_job.run(tmp_path, NEWEST, 3, script, planted, NCCL_TUNER_TABLE=str(table))
    assert done.codes == [0] * 3, done.outputs
    decision = decide(list(joined.joined(joined.read_folder(tmp_path / "job"))), {})
    assert [arm.arm for arm in decision.kept] == [RING], decision.arms
    (ring,) = decision.kept
    assert ring.found.interval[0] < 140 / 126 - 1 < ring.found.interval[1]
    assert ["do not end together" in (arm.why_not or "") for arm in decision.arms if arm.arm == TREE] == [True]
