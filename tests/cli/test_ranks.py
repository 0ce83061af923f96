"""``--ranks`` and ``--shared`` on the command line."""

import pytest

from tests.support.command_line import run

MACHINE = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


def test_pick_answers_for_some_ranks() -> None:
    shown = run("pick", "allreduce", *MACHINE, "--ranks", "0-7", "--bytes", "1G").stdout
    assert "on ranks 0-7 of 2 x dgx-h100, 8 GPUs each, NCCL 2.28.9" in shown
    shared = run("pick", "allreduce", *MACHINE, "--ranks", "0-7", "--shared", "--bytes", "1G").stdout
    assert "ranks 0-7 with shared resources of 2 x" in shared


@pytest.mark.parametrize(
    "words",
    [
        ("memory",),
        ("plot", "page", "-o", "report.html"),
        ("measure", "allreduce", "-o", "run.jsonl"),
        ("accept", "results.txt"),
        ("plot", "map", "allreduce", "-o", "map.png"),
    ],
)
def test_commands_of_all_ranks_refuse_some(words: tuple[str, ...]) -> None:
    assert "--ranks, --shared: not for this command" in run(*words, *MACHINE, "--ranks", "0-7", code=2).stderr


def test_what_is_no_list_of_ranks_is_refused() -> None:
    assert "7-0" in run("pick", "allreduce", *MACHINE, "--ranks", "7-0", code=2).stderr
