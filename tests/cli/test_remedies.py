"""Refusals that print a command: it is answered, and shows no value of a variable that is not NCCL's."""

import shlex

import pytest

from tests.support.command_line import run
from tuner.base.errors import Remedy
from tuner.cli.remedies import command

PICK = ("pick", "allreduce", "--bytes", "64M", "--nodes", "2")


@pytest.mark.parametrize(
    ("asked", "tried"),
    [
        ("--machine a3-megagpu-8g --nccl 2.28.9", "--machine azure-nd-h100-v5 --nccl 2.28.9"),
        ("--machine=p3dn.24xlarge --nccl 2.21.5", "--machine dgx-1v --nccl 2.21.5"),
        ("--machine dgx-h100 --nccl 2.18.5", "--machine dgx-h100 --nccl 2.19.3"),
        (
            "--machine dgx-h100 --nccl 2.28.9 --env NCCL_NET=Nowhere --env NCCL_ALGO=Ring --env TOKEN=hunter2",
            "--machine dgx-h100 --nccl 2.28.9 --env NCCL_ALGO=Ring",
        ),
        ("--machine dgx-h100 --nccl 2.26.2 --buffers window", "--machine dgx-h100 --nccl 2.26.2 --buffers plain"),
        (
            "--machine dgx-h100 --nccl 2.28.9 --buffers registered --env NCCL_CUMEM_ENABLE=0",
            "--machine dgx-h100 --nccl 2.28.9 --buffers plain --env NCCL_CUMEM_ENABLE=0",
        ),
        ("--machine dgx-h100 --nccl 2.28.9 --env NCCL_IB_HCA=ibp", "--machine dgx-h100 --nccl 2.28.9"),
    ],
)
def test_a_refusal_prints_a_command_that_is_answered(asked: str, tried: str) -> None:
    refused = run(*PICK, *asked.split(), code=2)
    *_, line = refused.stderr.splitlines()
    assert "\nnccl-tuner: " in f"\n{refused.stderr}"
    assert line == f"try: {shlex.join(['nccl-tuner', *PICK, *tried.split()])}"
    assert "hunter2" not in refused.stderr
    assert run(*shlex.split(line)[2:]).stdout


def test_what_the_command_line_does_not_have_is_not_changed() -> None:
    assert command(["pick", "allreduce", "--log", "a b.log"], [Remedy("nccl", "2.28.9")]) is None
    assert command(["pick"], []) is None
    assert command(["--nccl", "2.18.5", "a b"], [Remedy("nccl", "2.19.3")]) == "nccl-tuner --nccl 2.19.3 'a b'"
