"""Several values of one change are compared one by one, never the last alone."""

import json

import pytest

from tests.support.command_line import run
from tuner.answers.changes import each_of

ON = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


def test_each_value_is_a_comparison_of_its_own() -> None:
    together = json.loads(run("diff", "allreduce", "nodes=4", "nodes=8", *ON, "--bytes", "1M", "--json").stdout)[
        "comparisons"
    ]
    apart = [
        json.loads(run("diff", "allreduce", change, *ON, "--bytes", "1M", "--json").stdout)["comparisons"][0]
        for change in ("nodes=4", "nodes=8")
    ]
    assert together == apart
    out = run("diff", "allreduce", "nodes=4", "nodes=8", *ON, "--bytes", "1M").stdout
    assert [line.split()[1] for line in out.splitlines() if line.startswith("after:")] == ["4", "8"]


def test_values_of_two_keys_are_compared_with_each_other_and_devices_add_up() -> None:
    assert each_of(["a=1", "b=1", "a=2", "b=2", "c=0"]) == [
        ("a=1", "b=1", "c=0"),
        ("a=1", "b=2", "c=0"),
        ("b=1", "a=2", "c=0"),
        ("a=2", "b=2", "c=0"),
    ]
    assert each_of(["nodes=4", "nodes=4"]) == [("nodes=4",)]
    devices = ("remove-nic=mlx5_0", "remove-nic=mlx5_3", "nvlinks=17@gpu:1", "nvlinks=17@gpu:2")
    assert each_of(devices) == [devices]
    assert each_of([]) == [()]


@pytest.mark.parametrize(
    "words",
    [
        ("pick", "allreduce", *ON, "--change", "nics=4", "--change", "nics=2"),
        (
            "plot",
            "diff",
            "allreduce",
            "--machine",
            "dgx-h100",
            "--change",
            "NCCL_ALGO=Ring",
            "--change",
            "NCCL_ALGO=Tree",
        ),
    ],
    ids=lambda words: words[0],
)
def test_what_makes_one_comparison_refuses_two_values(words: tuple[str, ...]) -> None:
    done = run(*words, code=2)
    assert (
        f"{words[-3]} and {words[-1]} change the same key: give one of them, or compare each with 'nccl-tuner diff'"
        in done.stderr
    )
