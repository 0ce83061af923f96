"""Variables that a process sets between two communicators: tables/second_communicators.toml against libnccl itself."""

import json

import pytest

from tests.scripts import record_second_communicators as recorder
from tests.support.available_releases import HERE
from tests.support.command_line import run
from tests.support.draws import Draws
from tests.support.second_communicators import EACH, NOT_ASKED, ONCE, TRIED, readings
from tuner import release
from tuner.release import variables
from tuner.release.variables import asked_of_readings, variable_readings

USUAL = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_NET")
DRAWN = 4  # further variables of a release, times what is drawn


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("name", [name for name in HERE if name in asked_of_readings()])
def test_libnccl_reads_them_when_the_table_says(name: str, draws: Draws) -> None:
    said = {one.variable: one.read for one in variable_readings(name)}
    further = [variable for variable in said if variable not in USUAL]
    drawn = draws.random(f"second communicators {name}").sample(further, min(len(further), DRAWN * draws.times))
    found = readings(name, [*USUAL, *drawn])
    assert {variable: one.when or recorder.UNSEEN for variable, one in found.items()} == {
        variable: said[variable] for variable in found
    }
    assert {found[variable].when for variable in USUAL} == {EACH, ONCE}


def test_every_variable_that_reaches_a_pick_is_asked_or_said_why_not() -> None:
    for name in release.names():
        environment = release.load(name).environment
        assert {*environment.known, *environment.search} <= TRIED.keys() | NOT_ASKED.keys(), name
    assert not TRIED.keys() & NOT_ASKED.keys()


def test_the_table_is_as_the_recorder_writes_it() -> None:
    assert recorder.FILE.read_text() == recorder.HEAD + recorder.written(recorder.known())


@pytest.fixture
def two_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of two releases: they agree on NCCL_ALGO and NCCL_NTHREADS, and not on NCCL_MAX_CTAS."""
    made = {
        "releases": ["2.20.5", "2.23.4"],
        "NCCL_ALGO": {"2.18.1": EACH},
        "NCCL_NTHREADS": {"2.18.1": ONCE},
        "NCCL_MAX_CTAS": {"2.18.1": ONCE, "2.23.4": EACH},
    }
    monkeypatch.setattr(variables, "_second_communicators", lambda: made)


@pytest.mark.usefixtures("two_asked")
def test_a_release_between_two_that_agree_is_as_they_are() -> None:
    between = {one.variable: one.read for one in variable_readings("2.22.3")}
    assert between == {"NCCL_ALGO": EACH, "NCCL_NTHREADS": ONCE, "NCCL_MAX_CTAS": recorder.UNSEEN}
    after = {one.variable: one.read for one in variable_readings("2.32.3")}
    assert after == {"NCCL_ALGO": EACH, "NCCL_NTHREADS": ONCE, "NCCL_MAX_CTAS": EACH}


def test_one_release_alone_reads_the_switch_of_collnet_once() -> None:
    """NCCL 2.27.3, which no release beside it would tell: libnccl itself was asked."""
    of_release = {
        name: {one.variable: one.read for one in variable_readings(name)}["NCCL_COLLNET_ENABLE"]
        for name in asked_of_readings()
    }
    assert {name for name, read in of_release.items() if read == ONCE} == {"2.27.3"}


@pytest.mark.usefixtures("two_asked")
@pytest.mark.parametrize(("name", "compared"), [("2.22.3", False), ("2.23.4", True)])
def test_the_command_says_whether_a_release_itself_was_asked(name: str, compared: bool) -> None:
    words = ("job", "variables", "NCCL_ALGO", "--nccl", name)
    assert json.loads(run(*words, "--json").stdout)["compared"] is compared
    assert (f"NCCL {name} itself" not in run(*words).stdout) is compared


def test_the_command_says_which_count_for_a_new_communicator() -> None:
    whole = run("job", "variables", "--nccl", "2.28.9").stdout
    assert whole.startswith("NCCL 2.28.9: a new communicator of a running process reads ")
    assert "NCCL_ALGO" in whole.splitlines()[4]
    once = run("job", "variables", "NCCL_ALGO", "NCCL_MAX_NCHANNELS", "--nccl", "2.28.9", code=1).stdout
    assert once.startswith("no: set NCCL_MAX_NCHANNELS before the process starts")
    assert run("job", "variables", "NCCL_ALGO", "--nccl", "2.28.9").stdout.startswith(
        "yes: a new communicator reads it again"
    )
    unknown = run("job", "variables", "NCCL_ALG", "--nccl", "2.28.9", code=3)
    assert "did you mean NCCL_ALGO" in unknown.stderr


def test_the_command_as_json() -> None:
    done = json.loads(run("job", "variables", "NCCL_SYM_KERNEL", "NCCL_NTHREADS", "--json", code=1).stdout)
    assert (done["release"], done["compared"]) == (release.names()[-1], True)
    assert {one["variable"]: one["read"] for one in done["variables"]} == {
        "NCCL_SYM_KERNEL": EACH,
        "NCCL_NTHREADS": ONCE,
    }
