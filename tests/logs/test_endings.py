"""How a job ended: every ending is found behind every launcher's tags, and where a log ends decides its exit code."""

import itertools
import random
from pathlib import Path

import pytest

from tests.support.planted_endings import ENDINGS, MACHINES, POSITIONS, RELEASES, WRAPPERS, healthy, planted, wrapped
from tuner.base.findings import Finding, Severity, codes
from tuner.jobs.diagnosis.diagnose import diagnose
from tuner.jobs.diagnosis.records import DiagnosisOptions
from tuner.scenario.logs import endings

PLANTED = tuple(itertools.product(ENDINGS, WRAPPERS, POSITIONS, RELEASES))
HEALTHY = tuple(itertools.product(RELEASES, MACHINES.items(), range(4)))
CUTS = 20


def found(text: str, folder: Path) -> tuple[Finding, ...]:
    (folder / "run.log").write_text(text, "utf-8")
    (one,) = diagnose([folder / "run.log"], DiagnosisOptions())
    return one.findings


def is_named(case: tuple[str, str, str, str], seed: int, folder: Path) -> str | None:
    """What is wrong with the diagnosis of a planted ending; None where its kind and rank come first."""
    log = planted(*case, seed)
    first = found(log.text, folder)[0]
    kind = {"diagnose.timeout": "collective_timeout"}.get(first.code, first.code.partition(".")[2])
    rank = first.facts["ranks"][0] if kind == "collective_timeout" else first.facts.get("rank")
    right = kind == log.kind and first.severity is Severity.FAULT and (log.rank is None or rank == log.rank)
    return None if right else f"{case}: {first.code} of rank {rank}, not {log.kind} of rank {log.rank}"


@pytest.mark.parametrize("number", range(24))
def test_planted_endings_are_named_with_their_rank(number: int, tmp_path: Path) -> None:
    drawn = random.Random(number)
    assert is_named(drawn.choice(PLANTED), number, tmp_path) is None


@pytest.mark.slow
def test_nearly_all_planted_endings_are_named_with_their_rank(tmp_path: Path) -> None:
    wrong = [why for seed, case in enumerate(PLANTED) if (why := is_named(case, seed, tmp_path)) is not None]
    assert len(wrong) <= 0.05 * len(PLANTED), "\n".join(wrong[:20])


def verdicts_of_cuts(number: int, folder: Path) -> tuple[Severity, list[Severity]]:
    """Verdicts of a whole healthy log, and of the same cut at places before init is complete on all ranks."""
    release, (machine, nodes), _ = HEALTHY[number]
    drawn = random.Random(number)
    log = healthy(release, machine, nodes, drawn)
    wrapper = drawn.choice(list(WRAPPERS))
    lines = [wrapped(wrapper, at, line) for at, line in log.lines]
    before = len("".join(lines[: log.complete - 1]))
    whole = "".join(lines)
    cuts = [drawn.randrange(len(lines[0]), before) for _ in range(CUTS)]
    return found(whole, folder)[0].severity, [found(whole[:cut], folder)[0].severity for cut in cuts]


@pytest.mark.parametrize("number", range(0, len(HEALTHY), 33))
def test_a_healthy_log_is_healthy_and_one_cut_in_init_is_not_judged(number: int, tmp_path: Path) -> None:
    whole, cut = verdicts_of_cuts(number, tmp_path)
    assert whole in (Severity.NOTE, Severity.UNLIKE)
    assert set(cut) == {Severity.UNKNOWN}


@pytest.mark.slow
def test_nearly_all_healthy_logs_are_healthy_and_none_that_is_cut(tmp_path: Path) -> None:
    verdicts = [verdicts_of_cuts(number, tmp_path) for number in range(len(HEALTHY))]
    assert sum(whole in (Severity.NOTE, Severity.UNLIKE) for whole, _ in verdicts) >= 0.95 * len(verdicts)
    assert {each for _, cut in verdicts for each in cut} == {Severity.UNKNOWN}


@pytest.mark.parametrize("row", [row for row, _ in endings.patterns()], ids=lambda row: row.kind)
def test_every_kind_of_ending_finds_its_example_and_has_words(row: endings.EndingPattern) -> None:
    seen = endings.of_line(row.example, 1)
    assert seen is not None
    if row.kind not in ("signal", "exit_code"):
        of_number = row.kind == "xid" and row.role != endings.ECHO
        assert (seen.kind, seen.role) == (row.kind, endings.xids()[79].role if of_number else row.role)
    if row.role not in (endings.ORDERLY, endings.FRAME):
        assert f"ending.{seen.kind}" in codes()
