"""Options that are named and do what they say: ``--fail-on-change``, and ``-`` where a file is written."""

from pathlib import Path

import pytest

from benchmarks import doors
from tests.support.command_line import run

ON = ("diff", "allreduce", "--machine", "dgx-h100", "--nodes", "2")


def test_a_change_that_is_faster_ends_with_one_too() -> None:
    older, newer = ("2.22.3", "2.25.1"), ("2.28.9", "2.30.7")
    assert run(*ON, "--nccl", *newer, "--fail-on-change").stderr == ""
    said = run(*ON, "--nccl", *older, "--fail-on-change", code=1)
    shown = run(*ON, "--nccl", *older)
    assert said.stdout == shown.stdout
    assert (
        "AllReduce from 203895 B to 217134 B: Ring/LL on 3 channels of 512 threads instead of Tree/LL on 16 "
        in said.stderr
    )
    run(*ON, "--nccl", *older, "--fail-above", "1000%")


def test_channels_count_with_whole() -> None:
    forced = ("--env", "NCCL_ALGO=Ring", "--env", "NCCL_PROTO=Simple", "--from", "64M", "--to", "128M")
    words = (*ON, "--nccl", "2.28.9", "NCCL_MAX_NCHANNELS=8", *forced, "--fail-on-change")
    run(*words)
    said = run(*words, "--whole", code=1).stderr
    assert "Ring/Simple on 8 channels of 544 threads instead of Ring/Simple on 16 channels" in said


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "allreduce", "--machine", "dgx-h100", "--all-releases"),
        ("diff", "send", "--machine", "dgx-h100", "--nccl", "2.28.9", "2.29.2"),
    ],
)
def test_what_has_no_picks_to_compare_is_refused(words: tuple[str, ...]) -> None:
    assert "--fail-on-change" in run(*words, "--fail-on-change", code=2).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("plugin", "compile", "--machine", "dgx-h100", "--nccl", "2.28.9", "--as", "decisions"),
        ("measured", "h100-8x-2n__2.21.5__oci", "--source", "x"),
        ("plot", "map", "allreduce", "--machine", "dgx-h100"),
    ],
)
def test_no_file_is_called_a_dash(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        "-: this file cannot be written to standard output; give a file's name" in run(*words, "-o", "-", code=2).stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_a_dash_is_standard_output_where_a_command_prints_without_it(tmp_path: Path) -> None:
    (table := tmp_path / "nvidia.csv").write_text("allreduce,1024,1048576,ring,ll128,4,2,16,-1,-1\n", "utf-8")
    for words in (
        ("machines", "dgx-h100"),
        ("export", "allreduce", "--format", "csv", "--machine", "dgx-h100", "--nccl", "2.28.9", "--bytes", "1M"),
        ("plugin", "convert", str(table)),
    ):
        plain, dashed = run(*words), run(*words, "--out", "-")
        assert plain.stdout == dashed.stdout != ""
    assert "Ring" in plain.stdout or "ring" in plain.stdout
    assert "add --out OUT" in run("plugin", "convert", str(table), "--json", code=2).stderr


@pytest.mark.parametrize(("word", "command"), [("predict", "pick"), ("upgrade", "diff"), ("compare", "diff")])
def test_words_that_people_look_for_are_the_commands(word: str, command: str) -> None:
    words = ("allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9")
    more = ("2.30.7",) if command == "diff" else ("--bytes", "1M")
    assert run(word, *words, *more).stdout == run(command, *words, *more).stdout != ""
    assert run("tune", "--help").stdout == run("decide", "--help").stdout


def test_a_release_between_two_says_so_where_they_agree_alone() -> None:
    answered = run("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.26.3", "--bytes", "1M").stderr
    assert "note: NCCL 2.26.3: between 2.26.2 and 2.26.5, which agree" in answered
    refused = run("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.27.4", "--bytes", "1M", code=2).stderr
    assert "differ here" in refused
    assert "note:" not in refused


def test_what_clouds_and_frameworks_set_is_answered() -> None:
    """The first hundred of what benchmarks/doors.py draws: one in ten is refused at most, each with a command."""
    refused = 0
    configurations = list(doors.draw(100, seed=1))
    for each in configurations:
        answer = doors.run(each.words())
        assert answer.code in (0, 1, 2), each.words()
        refused += answer.code == 2
        assert answer.code == 0 or doors.led_on(answer) is not None, (each.words(), answer.errors)
        assert (answer.code == 1) is (doors.FAILS in answer.errors)
    assert refused <= len(configurations) // 10
