"""What differs between releases beside the picks, and known regressions with what this tool says of each."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.available_releases import is_here
from tuner import release
from tuner.answers.beyond import differences
from tuner.cli import everything
from tuner.release.regressions import Regression, RegressionCommand, between, regressions
from tuner.release.variables import changed_defaults, defaults
from tuner.scenario import Scenario

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
    threads = [one["thread"] for one in json.loads(printed(["diff", "--regressions", "2.29.2", "2.29.7", "--json"]))]
    assert threads == ["https://github.com/NVIDIA/nccl/issues/2058"]
    refused = CliRunner().invoke(everything, ["diff", "--regressions", "2.29.2"])
    assert "valid: none, or BEFORE AFTER" in str(refused.exception)


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
    assert json.loads(printed(words)) == []
    whole = json.loads(printed([*words, "--beyond"]))
    assert whole["selection_identical"]
    assert whole["changes"] == []
    assert {one["topic"] for one in whole["beyond"]} == {"defaults"}
    assert [one["thread"] for one in whole["known_regressions"]] == ["https://github.com/NVIDIA/nccl/issues/2058"]


def test_selection_is_not_identical_where_channels_differ() -> None:
    """AllGather of 1 MiB has 24 channels in 2.28.9 and 22 in 2.29.2, with the same algorithm and protocol."""
    whole = json.loads(
        printed(["diff", "allgather", "--machine", "dgx-h100", "--nccl", "2.28.9", "2.29.2", "--json", "--beyond"])
    )
    assert whole["changes"] == []
    assert not whole["selection_identical"]


def test_fits_80_columns() -> None:
    """But for addresses and names of whose times are shown, which are not broken."""
    output = printed(["diff", "--machine", "dgx-h100", "--nccl", "2.29.2", "2.29.7", "--time", "nccl"], columns=80)
    lines = [line for line in output.splitlines() if "https://" not in line and not line.startswith("the same")]
    assert max(map(len, lines)) <= 80
