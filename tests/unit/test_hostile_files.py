"""All readers on files that are damaged: `make hostile` runs 2,000 of these."""

from pathlib import Path

import pytest

from tests.support.hostile_runs import DAMAGES, EXAMPLES, READERS, files, measured, runs


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.hypothesis  # so that `make explore` runs it, with many more
def test_damaged_files_end_in_an_answer_or_a_line(tmp_path: Path, explores: bool) -> None:
    done = [*runs(20 * len(READERS) if explores else 3 * len(READERS), 5, tmp_path / "kept")]
    assert [each for each in done if each.says] == []
    assert {each.reader for each in done} == set(READERS)
    assert {each.damage for each in done} == set(DAMAGES)


def test_every_example_that_is_read_is_damaged() -> None:
    assert {each.suffix for each in files()} >= {
        ".log",
        ".json",
        ".xml",
        ".pickle",
        ".sqlite",
        ".csv",
        ".table",
        ".job",
    }


@pytest.mark.slow
def test_a_traceback_and_a_run_over_its_bounds_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["diagnose", str(EXAMPLES / "nccl.log")]
    assert measured(words)[2] == ""
    monkeypatch.setattr("tests.support.hostile_runs.MOST_MB", 0)
    assert " MB, " in measured(words)[2]
    monkeypatch.setattr("tuner.cli.main", None)
    assert "Traceback" in measured(words)[2]
