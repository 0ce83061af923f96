"""The benchmarks that hold one build beside another: the pairs, their history, and answers that have to be equal."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from benchmarks import paired, same_answers, trend
from tuner.base.numerics import FloatArray
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection

BASE = Path("/base/python")


def test_pairs_are_measured_in_turn_after_one_run_of_each() -> None:
    asked: list[str] = []

    def measure(row: str, python: Path) -> float:
        asked.append("base" if python == BASE else "today")
        return 6.0 if python == BASE else 2.0

    times = paired.paired("pick", BASE, 3, measure)
    assert asked == ["base", "today", "base", "today", "today", "base", "base", "today"]
    assert times == [[6.0, 2.0]] * 3
    assert paired.summary("pick", "a423327c", times).ratio == 3.0


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    """One pair of a busy moment does not count; nor are medians divided, which could be of different moments."""
    found = paired.summary("pick", "a423327c", [[2.0, 1.0], [30.0, 10.0], [90.0, 1.0]])
    assert (found.base_cpu_s, found.cpu_s, found.ratio) == (30.0, 1.0, 3.0)


@pytest.mark.parametrize("seconds", [0.2, 0.4])
def test_the_time_of_a_process_counts_those_that_it_waits_for(seconds: float, tmp_path: Path) -> None:
    spin = f"import time\nwhile time.process_time() < {seconds}: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    assert paired.cpu_s([sys.executable, "-c", child], tmp_path) >= seconds


def test_a_row_that_fails_has_no_time(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=": 2"):
        paired.cpu_s([sys.executable, "-c", "raise SystemExit(2)"], tmp_path)


def test_a_row_runs_the_code_of_its_own_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PYTHONPATH of whoever measures would let both builds run the same code."""
    other, own = tmp_path / "other", tmp_path / "own"
    for folder, code in ((other, 1), (own, 0)):
        folder.mkdir()
        (folder / "of_a_build.py").write_text(f"raise SystemExit({2 * code})")
    monkeypatch.setenv("PYTHONPATH", str(other))
    assert paired.cpu_s([sys.executable, "-c", "import of_a_build"], own) > 0


def test_every_goal_is_a_row() -> None:
    assert set(paired.WANTED) <= {paired.FIRST, *paired.ROWS}


def test_the_page_shows_every_line_of_the_history(tmp_path: Path) -> None:
    runs = [paired.summary(row, "a423327c", [[each, 1.0]]) for row in ("memory", "pick") for each in (3.0, 4.0)]
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs))
    assert trend.read(history) == runs
    page = trend.page(runs)
    assert page.count("| a423327c |") == len(runs)
    assert page.index("## memory") < page.index("| 3.00 |") < page.index("## pick")


def test_the_kept_page_is_of_the_kept_history() -> None:
    assert trend.PAGE.read_text("utf-8") == trend.page(trend.read(paired.HISTORY))


def test_random_scenarios_are_the_same_ones_again_and_are_answered() -> None:
    drawn = same_answers.drawn(3, 40)
    assert drawn == same_answers.drawn(3, 40) != same_answers.drawn(4, 40)
    answers = [same_answers.answer(each) for each in drawn]
    assert sum(": " not in each for each in answers) > len(answers) // 3
    assert len(set(answers)) > len(answers) // 3


def test_the_last_bit_of_one_number_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = next(each for each in same_answers.drawn(3, 40) if ": " not in same_answers.answer(each))
    before, cost_table = same_answers.answer(asked), Selection.cost_table

    def changed(self: Selection, request: Request, sizes: ArrayLike) -> FloatArray:
        table = cost_table(self, request, sizes)
        table[-1, 0, 0] = np.nextafter(table[-1, 0, 0], np.float32(np.inf))
        return table

    monkeypatch.setattr(Selection, "cost_table", changed)
    assert same_answers.answer(asked) != before
