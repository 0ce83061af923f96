"""What changes between two communicators and two releases, against the picks of both; and known regressions."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.available_releases import is_here
from tuner import release
from tuner.answers.beyond import differences
from tuner.answers.changes import at_sizes, changed
from tuner.answers.diff import PickChange, Side, diff, loss, share_changed
from tuner.answers.symmetric import NonClassicPick
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.cli import everything
from tuner.emulator.request import Request
from tuner.emulator.selection import Pick
from tuner.release.regressions import Regression, RegressionCommand, between, regressions
from tuner.release.variables import changed_defaults, defaults
from tuner.scenario import Scenario

CASE = Scenario("2.22.3", 2, "dgx-h100")
PAIRS = [
    ("2.22.3", ["nccl=2.25.1"]),
    ("2.18.1", ["nccl=2.32.3"]),
    ("2.28.9", ["nodes=4", "NCCL_PROTO=Simple"]),
    ("2.28.9", ["machine=dgx-b200"]),
    ("2.28.9", ["gpus-per-node=4"]),
]


def request(collective: Collective) -> Request:
    return Request(collective, DataType.float32, Op.sum)


def sides(nccl: str, assignments: list[str], whole: bool = False) -> tuple[Side, Side]:
    before = replace(CASE, nccl=nccl)
    return Side(before, whole=whole), Side(changed(before, assignments), whole=whole)


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize(("nccl", "assignments"), PAIRS)
def test_picks_differ_in_the_ranges_and_nowhere_else(
    nccl: str, assignments: list[str], collective: Collective, whole: bool
) -> None:
    asked, (before, after) = request(collective), sides(nccl, assignments, whole)
    changes = diff(before, after, asked)
    low = max(int(side.ranges(asked).from_bytes[0]) for side in (before, after))
    ends = np.array([[change.from_bytes, change.to_bytes] for change in changes], np.int64).reshape(-1, 2)
    around = (ends[..., None] + np.arange(-50, 51)).ravel()
    sizes = np.sort(np.concatenate([np.geomspace(low, 1 << 40, 20_000).astype(np.int64), around]))
    sizes = sizes[(sizes >= low) & (sizes <= 1 << 40) & (np.diff(sizes, prepend=0) > 0)]
    picks = [side.selection.pick(asked, sizes) for side in (before, after)]
    names = ("algorithm", "protocol", "channels", "threads") if whole else ("algorithm", "protocol")
    differ = np.any([getattr(picks[0], name) != getattr(picks[1], name) for name in names], axis=0)
    at = np.searchsorted(ends[:, 0], sizes, side="right") - 1
    inside = (at >= 0) & (sizes <= ends[at, 1]) if len(ends) else np.zeros(len(sizes), bool)
    assert (inside == differ).all(), sizes[inside != differ][:5]


@pytest.mark.parametrize(("nccl", "assignments"), PAIRS)
def test_ratios_are_those_of_the_times(nccl: str, assignments: list[str]) -> None:
    asked, (before, after) = request(Collective.AllReduce), sides(nccl, assignments)
    changes = diff(before, after, asked)
    assert changes
    for change in changes:
        assert change.from_bytes <= change.at_bytes <= change.to_bytes
        at: tuple[tuple[int, float | None], ...] = (
            (change.from_bytes, change.ratio_from),
            (change.at_bytes, change.ratio),
            (change.to_bytes, change.ratio_to),
        )
        for size, ratio in at:
            old, new = (side.selection.pick(asked, size).time_us[0] for side in (before, after))
            assert np.float32(ratio) == new / old
        for side, ratio in ((before, change.ratio_by_before), (after, change.ratio_by_after)):
            table = side.selection.cost_table(asked, change.at_bytes)[0]
            names = (pick.name.split("/") for pick in (change.before, change.after))
            old, new = (table[Algorithm[algorithm], Protocol[protocol]] for algorithm, protocol in names)
            assert (ratio is None) == (min(old, new) < 0)
            assert ratio is None or np.float32(ratio) == new / old


def test_nobody_thinks_its_own_pick_the_slower() -> None:
    """Where both can run both: the new pick gains by the new model, the old one by the old."""
    judged = 0
    for nccl in ("2.18.1", "2.21.5", "2.28.9"):
        before, after = sides(nccl, ["nccl=2.32.3"])
        for collective in Collective:
            for change in diff(before, after, request(collective)):
                judged += 1
                assert change.ratio_by_before is None or change.ratio_by_before >= 1
                assert change.ratio_by_after is None or change.ratio_by_after <= 1
    assert judged > 10


def test_the_same_twice_changes_nothing() -> None:
    before, after = sides("2.28.9", ["nccl=2.28.9"], whole=True)
    assert diff(before, after, request(Collective.AllReduce)) == []


def test_a_side_without_an_answer_is_named() -> None:
    before, after = sides("2.28.9", ["NCCL_ALGO=PAT"])
    with pytest.raises(NoAlgorithm, match=r"2 x dgx-h100.*nothing is left for AllReduce"):
        diff(before, after, request(Collective.AllReduce))


def test_a_share_counts_octaves() -> None:
    ends = [(1 << 10, (1 << 11) - 1), (1 << 20, (1 << 22) - 1), (1 << 30, (1 << 35) - 1)]
    before, after = sides("2.28.9", ["nodes=4"])
    (one, *_) = diff(before, after, request(Collective.AllReduce))
    changes: list[PickChange] = [replace(one, from_bytes=low, to_bytes=high) for low, high in ends]
    assert share_changed(changes, 1 << 10, (1 << 30) - 1) == pytest.approx(3 / 20)
    assert share_changed([], 1, 2) == 0


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("nodes", "not of the form KEY=VALUE"),
        ("nodes=", "not of the form KEY=VALUE"),
        ("nodes=0", "valid are 1 to"),
        ("nodes=two", "valid are 1 to"),
        ("colour=red", "'colour' is not a key that can be changed.*nodes"),
    ],
)
def test_changes_that_are_none(assignment: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        changed(CASE, [assignment])


def run(*arguments: str) -> str:
    result = CliRunner().invoke(everything, ["diff", "--machine", "dgx-h100", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_upgrade_in_words_and_in_json() -> None:
    arguments = ("--nodes", "2", "--nccl", "2.22.3", "2.25.1")
    text, records = run(*arguments), json.loads(run(*arguments, "--json"))["comparisons"][0]["changes"]
    assert "before: 2 x dgx-h100, 8 GPUs each, NCCL 2.22.3" in text
    first = text.splitlines()[0]
    assert first.startswith("the pick changes in 4 ranges of sizes (Broadcast 1, Reduce 1, AllReduce 2), there up to ")
    assert "by NCCL's own model; " in first
    assert "after such an upgrade: nccl-tuner diff --regressions 2.22.3 2.25.1" in text
    assert all(f"  {each.title}\n" in text.partition("before: ")[0] for each in between("2.22.3", "2.25.1"))
    assert "the same algorithm and protocol at every size: AllGather, ReduceScatter" in text
    before, after = sides("2.22.3", ["nccl=2.25.1"])
    own = [change for collective in Collective for change in diff(before, after, request(collective))]
    assert [(r["collective"], r["from_bytes"], r["to_bytes"], r["ratio"]) for r in records] == [
        (change.collective, change.from_bytes, change.to_bytes, change.ratio) for change in own
    ]
    assert records[0]["before"]["protocol"] == "LL128"
    assert records[0]["after"]["protocol"] == "Simple"


def test_what_the_same_means_is_said() -> None:
    """Channels of an AllGather change here, which is told of only when they are compared."""
    arguments = ("allgather", "--nodes", "2", "--nccl", "2.28.9", "2.29.2")
    assert "the same algorithm and protocol at every size: AllGather" in run(*arguments)
    assert "Ring/LL x10      Ring/LL x9" in run(*arguments, "--whole")
    same = run("allgather", "--nodes", "2", "--nccl", "2.29.2", "2.29.3", "--whole")
    assert same.endswith("\nthe same at every size: AllGather\n")


def test_the_side_that_cannot_run_a_collective_is_named() -> None:
    arguments = ("--machine", "dgx-h100", "--nccl", "2.28.9", "--env", "NCCL_ALGO=NVLS", "--change", "nodes=2")
    change = ("--change", "NCCL_ALGO=NVLS,Ring;allgather:Tree")
    result = CliRunner().invoke(everything, ["diff", *arguments, *change], catch_exceptions=False)
    assert "Broadcast: nothing can run it before\n" in result.stderr
    assert "AllGather: nothing can run it after\n" in result.stderr
    assert "AllReduce" in result.stdout


@pytest.mark.slow
def test_all_releases() -> None:
    pairs = json.loads(run("allreduce", "--nodes", "2", "--all-releases", "--json"))["comparisons"]
    assert len(pairs) == 26 * 25 // 2
    (upgrade,) = [pair for pair in pairs if (pair["before"], pair["after"]) == ("2.22.3", "2.25.1")]
    words = ("allreduce", "--nodes", "2", "--nccl", "2.22.3", "2.25.1", "--time", "nccl", "--json")
    assert upgrade["changes"] == json.loads(run(*words))["comparisons"][0]["changes"]
    assert len(run("allreduce", "--nodes", "2", "--all-releases").splitlines()) > 26


@pytest.mark.slow
def test_all_releases_that_have_such_buffers() -> None:
    words = ["diff", "allgather", "--machine", "dgx-b200", "--all-releases", "--buffers", "window"]
    result = CliRunner().invoke(everything, words)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("left out: NCCL 2.18.1, 2.18.3, 2.19.3, ")
    assert result.stderr.endswith("2.26.5, which cannot use such buffers (--buffers window)\n")
    later = [name for name in release.names() if release.load(name).rules.non_classic_path != "classic_path_only"]
    pairs = [tuple(line.split()[:2]) for line in result.stdout.splitlines() if line.startswith(" 2.")]
    assert pairs == [*pairwise(later)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--nccl", "2.22.3"], "nothing differs"),
        (["2.22.3", "2.25.1", "2.26.2"], "more than two releases: 2.22.3, 2.25.1, 2.26.2; name two, BEFORE AFTER"),
        (["--all-releases", "--nccl", "2.22.3"], "compares every release"),
        (["2.99"], "2.99"),
    ],
)
def test_comparisons_that_are_none(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(everything, ["diff", "--machine", "dgx-h100", *arguments])
    assert says in str(result.exception)


@pytest.mark.slow
def test_windows_are_compared_by_their_own_models() -> None:
    asked = Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.window)
    before, after = (Side(Scenario(nccl, 1, machine="dgx-b200")) for nccl in ("2.28.9", "2.32.3"))
    changes = diff(before, after, asked)
    names = [(change.before.name, change.after.name) for change in changes]
    assert names[-2:] == [("symmetric kernel AllGather_STMC", "copy engines"), ("Ring/Simple", "copy engines")]
    assert [change.from_bytes for change in changes[-2:]] == [268435488, 64 << 30]
    for change in changes:
        size = np.array([change.at_bytes], np.uint64)
        assert ([change.before], [change.after]) == (before.picks(asked, size), after.picks(asked, size))
        copied = change.after.name == "copy engines"
        assert (change.ratio is None) == copied == (loss(change) is None)
        assert not copied or (change.ratio_by_before, change.ratio_by_after) == (None, None)
    between = [change for change in changes if change.ratio is not None]
    assert all(isinstance(each.before.time_us, float) for each in between)
    for each in between:
        old, new = each.before.time_us, each.after.time_us
        assert old is not None
        assert new is not None
        assert each.ratio == pytest.approx(new / old, rel=1e-6)
    first = between[0]  # both releases have both kernels
    assert (first.before.name, first.after.name) == tuple(f"symmetric kernel AllGather_{one}" for one in ("LLMC", "LL"))
    assert first.ratio_by_before is not None
    assert first.ratio_by_after is not None
    assert first.ratio_by_after < 1 < first.ratio_by_before  # each release takes the kernel that its own model prefers


def test_windows_beside_the_classic_path_have_no_ratio() -> None:
    asked = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.window)
    before = Side(Scenario("2.30.7", 1, machine="dgx-h100"))
    after = Side(Scenario("2.30.7", 1, machine="dgx-h100", environment={"NCCL_WIN_ENABLE": "0"}))
    changes = diff(before, after, asked)
    assert changes
    for change in changes:
        assert isinstance(change.before, NonClassicPick)
        assert isinstance(change.after, Pick)
        assert (change.ratio, change.ratio_by_before, change.ratio_by_after) == (None, None, None)
        (at,) = at_sizes(before, after, asked, [change.at_bytes])
        assert (at.before, at.after, at.ratio) == (change.before, change.after, None)


ROOT = Path(__file__).parents[2]


def marks(run: RegressionCommand) -> list[pytest.MarkDecorator]:
    missing = [name for name in release.names() if name in run.command.split() and not is_here(name)]
    return (
        [pytest.mark.live, pytest.mark.skipif(bool(missing), reason=f"no libnccl {' or '.join(missing)} here")]
        if run.live
        else []
    )


RUNS = [
    pytest.param(run, id=f"{one.thread.rpartition('/')[2]}-{number}", marks=marks(run))
    for one in regressions()
    for number, run in enumerate(one.runs)
]


def printed(words: Sequence[str], columns: int = 250) -> str:
    result = CliRunner().invoke(everything, words, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("run", RUNS)
def test_what_is_said_of_a_regression_is_what_the_tool_prints(
    run: RegressionCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    output = printed(shlex.split(run.command))
    for pattern in run.prints:
        assert re.search(pattern, output), pattern
    for pattern in run.lacks:
        assert not re.search(pattern, output), pattern


@pytest.mark.parametrize("one", regressions(), ids=lambda one: one.thread.rpartition("/")[2])
def test_regressions_are_whole(one: Regression) -> None:
    assert {one.first, one.fixed} - {None} <= set(release.names())
    assert one.thread.startswith("https://github.com/")
    assert one.verdict in ("explains", "partly", "cannot")
    assert one.runs


def test_regressions_between_two_releases() -> None:
    threads = {one.thread.rpartition("/")[2] for one in between("2.22.3", "2.27.7")}
    assert {"1876", "1997", "892"} <= threads
    assert "2058" not in threads
    assert "1876" not in {one.thread.rpartition("/")[2] for one in between("2.22.3", "2.29.2")}  # fixed by then
    assert between("2.28.9", "2.28.9") == []


def test_regressions_as_printed() -> None:
    assert "issues/2058" in printed(["diff", "--regressions"])
    assert printed(["diff", "--regressions"]).startswith(
        f"{len(regressions())} regressions known; nccl-tuner explains it: "
    )
    none = printed(["diff", "--regressions", "2.28.9", "2.28.9"])
    assert none.startswith("no regression is known that 2.28.9 has and 2.28.9 does not")
    known = json.loads(printed(["diff", "--regressions", "2.29.2", "2.29.7", "--json"]))["regressions"]
    threads = [one["thread"] for one in known]
    assert threads == ["https://github.com/NVIDIA/nccl/issues/2058"]
    refused = CliRunner().invoke(everything, ["diff", "--regressions", "2.29.2"])
    assert "name two releases, BEFORE AFTER, or none" in str(refused.exception)


def test_defaults_that_changed() -> None:
    assert defaults("2.18.1")["NCCL_MAX_P2P_NCHANNELS"] == 32
    assert defaults("2.25.1")["NCCL_MAX_P2P_NCHANNELS"] == 64
    assert "NCCL_CTA_POLICY" not in defaults("2.29.2")
    changed = {one.variable: (one.before, one.after) for one in changed_defaults("2.24.3", "2.25.1")}
    assert changed["NCCL_MAX_P2P_NCHANNELS"] == (32, 64)
    assert not changed_defaults("2.28.9", "2.28.9")


@pytest.mark.parametrize("name", release.names())
def test_every_release_has_defaults(name: str) -> None:
    """Those of buffers among them, which every release reads."""
    of_release = defaults(name)
    assert {"NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE"} <= of_release.keys()
    assert len(of_release) > 80


def test_what_differs_beside_the_picks() -> None:
    scenarios = [Scenario(machine="dgx-a100", nodes=2, nccl=name) for name in ("2.24.3", "2.25.1")]
    found = {(one.topic, one.name): (one.before, one.after) for one in differences(*scenarios)}
    assert found["limits", "most channels"] == ("32", "64")
    assert found["defaults", "NCCL_MAX_P2P_NCHANNELS"] == ("32", "64")
    assert differences(scenarios[0], scenarios[0]) == []


def test_symmetric_kernels_and_ll128() -> None:
    without, with_windows = (Scenario(machine="dgx-h100", nodes=1, nccl=name) for name in ("2.26.5", "2.27.3"))
    found = {one.name: one.after for one in differences(without, with_windows) if one.topic == "symmetric kernels"}
    assert "AllReduce" in found["AllReduce"]
    no_ll128 = Scenario(machine="dgx-h100", nodes=1, nccl="2.27.3", environment={"NCCL_PROTO": "^LL128"})
    legal = {one.name: (one.before, one.after) for one in differences(with_windows, no_ll128)}
    assert legal["AllReduce"] == ("Tree, Ring", "none")


def test_diff_of_releases_as_json() -> None:
    words = ["diff", "allreduce", "--machine", "dgx-h100", "--nccl", "2.29.2", "2.29.7", "--json"]
    assert [each["changes"] for each in json.loads(printed(words))["comparisons"]] == [[]]
    (whole,) = json.loads(printed([*words, "--beyond"]))["comparisons"]
    assert whole["selection_identical"]
    assert whole["changes"] == []
    assert {one["topic"] for one in whole["beyond"]} == {"defaults"}
    assert [one["thread"] for one in whole["known_regressions"]] == ["https://github.com/NVIDIA/nccl/issues/2058"]


def test_selection_is_not_identical_where_channels_differ() -> None:
    """AllGather of 1 MiB has 24 channels in 2.28.9 and 22 in 2.29.2, with the same algorithm and protocol."""
    (whole,) = json.loads(
        printed(["diff", "allgather", "--machine", "dgx-h100", "--nccl", "2.28.9", "2.29.2", "--json", "--beyond"])
    )["comparisons"]
    assert whole["changes"] == []
    assert not whole["selection_identical"]


def test_fits_80_columns() -> None:
    """But for addresses and names of whose times are shown, which are not broken."""
    output = printed(["diff", "--machine", "dgx-h100", "--nccl", "2.29.2", "2.29.7", "--time", "nccl"], columns=80)
    lines = [line for line in output.splitlines() if "https://" not in line and not line.startswith("the same")]
    assert max(map(len, lines)) <= 80


def test_a_loss_is_by_one_models_times_where_one_has_both_picks() -> None:
    change = next(iter(diff(*sides("2.22.3", ["nccl=2.25.1"]), request(Collective.AllReduce))))
    shares = []
    for ratios in ((1.5, 1.25), (1.5, None), (None, None)):
        found = loss(replace(change, ratio=ratios[0], ratio_by_before=ratios[1], calibrated=None))
        shares.append(found)
    assert shares == [(0.25, "the model before"), (0.5, "each side's own model"), None]
