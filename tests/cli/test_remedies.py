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
        ("--machine BM.GPU.RTXPRO.8 --nccl 2.28.9", "--machine pcie-rtxpro6000 --nccl 2.28.9"),
        ("--machine=p3dn.24xlarge --nccl 2.21.5", "--machine dgx-1v --nccl 2.21.5"),
        ("--machine dgx-h100 --nccl 2.27.4", "--machine dgx-h100 --nccl 2.27.5"),
        ("--machine dgx-h100 --nccl ngc-25.06", "--machine dgx-h100 --nccl 2.26.3"),
        ("--machine dgx-h100 --nccl torch==2.9.7", "--machine dgx-h100 --nccl torch==2.9.1"),
        ("--machine dgx-h100 --nccl vllm/vllm-openai:v0.11.0", "--machine dgx-h100 --nccl vllm==0.11.0"),
        (
            "--machine dgx-h100 --nccl pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime",
            "--machine dgx-h100 --nccl torch==2.9.1",
        ),
        ("--machine dgx-h100 --nccl tensorrt-llm==1.0.0", "--machine dgx-h100 --nccl 2.32.3"),
        ("--machine dgx-h100 --nccl jax[cuda]", "--machine dgx-h100 --nccl 2.32.3"),
        ("--machine dgx-h100 --nccl torch", "--machine dgx-h100 --nccl torch==2.14.1"),
        ("--machine dgx-h100 --nccl 2.28.9 --op premulsum", "--machine dgx-h100 --nccl 2.28.9 --op avg"),
        ("--machine dgx-h100 --nccl 2.28.9 --env NCCL_NET=FasTrak", "--machine dgx-h100 --nccl 2.28.9"),
        (
            "--machine dgx-h100 --nccl 2.28.9 --env NCCL_IB_DISABLE=1 --env NCCL_NET=IB",
            "--machine dgx-h100 --nccl 2.28.9 --env NCCL_NET=IB",
        ),
        (
            "--machine dgx-h100 --nccl 2.28.9 --env NCCL_NET=Nowhere --env NCCL_ALGO=Ring --env TOKEN=hunter2",
            "--machine dgx-h100 --nccl 2.28.9 --env NCCL_ALGO=Ring",
        ),
        (
            "--machine dgx-h100 --nccl 2.32.3 --buffers registered --env NCCL_NVLS_UB_SIZE=0",
            "--machine dgx-h100 --nccl 2.32.3 --buffers plain --env NCCL_NVLS_UB_SIZE=0",
        ),
        (
            "--machine p5.48xlarge --nccl 2.28.9 --env OFI_NCCL_NIC_DUP_CONNS=2 --env OFI_NCCL_TUNER_TYPE=Model",
            "--machine p5.48xlarge --nccl 2.28.9 --env OFI_NCCL_TUNER_TYPE=Model",
        ),
        (
            "--machine p5.48xlarge --nccl 2.30.7 --buffers window",
            "--machine p5.48xlarge --nccl 2.30.7 --buffers window --env NCCL_GIN_TYPE=0",
        ),
        ("--machine 8xl4@2xmilan --nccl 2.28.9", "--machine 8xl4@2xmilan+1x100g --nccl 2.28.9"),
        ("--machine dgx-h100 --nccl 2.28.9 --env NCCL_IB_HCA=ibp", "--machine dgx-h100 --nccl 2.28.9"),
        (
            "--machine dgx-h100 --nccl 2.32.6 --buffers window",
            "--machine dgx-h100 --nccl 2.32.3 --buffers window",
        ),
        (
            "--machine pcie-rtxpro6000 --nccl 2.28.9 --buffers registered --env NCCL_SHM_DISABLE=1",
            "--machine pcie-rtxpro6000 --nccl 2.28.9 --buffers plain --env NCCL_SHM_DISABLE=1",
        ),
    ],
)
def test_a_refusal_prints_a_command_that_is_answered(asked: str, tried: str) -> None:
    refused = run(*PICK, *asked.split(), code=2)
    *_, line = refused.stderr.splitlines()
    assert "\nnccl-tuner: " in f"\n{refused.stderr}"
    assert line == f"try: {shlex.join(['nccl-tuner', *PICK, *tried.split()])}"
    assert "hunter2" not in refused.stderr
    assert run(*shlex.split(line)[2:]).stdout


@pytest.mark.parametrize(
    ("asked", "tried"),
    [
        ("--machine dgx-h100 --nccl 2.26.2 --buffers window", "--machine dgx-h100 --nccl 2.26.2 --buffers plain"),
        ("--machine dgx-h100 --nccl 2.18.3 --buffers registered", "--machine dgx-h100 --nccl 2.18.3 --buffers plain"),
        ("--machine dgx-h100 --nccl 2.28.9 --env NCCL_ALGO=auto", "--machine dgx-h100 --nccl 2.28.9"),
        ("--machine dgx-h100 --nccl 2.28.9 --env NCCL_ALGO=PAT", "--machine dgx-h100 --nccl 2.28.9"),
        ("--machine dgx-a100 --nccl 2.28.9 --dtype float8e4m3", "--machine dgx-a100 --nccl 2.28.9 --dtype float16"),
        ("--machine dgx-a100 --nccl 2.21.5 --env NCCL_MNNVL_ENABLE=1", "--machine dgx-a100 --nccl 2.21.5"),
        (
            "--machine gb200-nvl72 --nccl 2.23.4",
            "--machine gb200-nvl72 --nccl 2.23.4 --env NCCL_NVLS_ENABLE=0",
        ),
        ("--machine dgx-h100 --nccl 2.28.9 --env NCCL_BUFFSIZE=512", "--machine dgx-h100 --nccl 2.28.9"),
        ("--machine u-p6e-gb200x72 --nccl 2.21.5", "--machine u-p6e-gb200x72 --nccl 2.26.2"),
        ("--machine dgx-b300 --nccl 2.18.1", "--machine dgx-b300 --nccl 2.18.3"),
    ],
)
def test_what_nccl_itself_fails_at_is_an_answer_with_a_command_that_works(asked: str, tried: str) -> None:
    failed = run(*PICK, *asked.split(), code=1)
    *_, says, line = failed.stderr.splitlines()
    assert says.startswith("nccl-tuner: NCCL itself fails here: ")
    assert line == f"try: {shlex.join(['nccl-tuner', *PICK, *tried.split()])}"
    assert run(*shlex.split(line)[2:]).stdout


@pytest.mark.parametrize(
    ("asked", "tried"),
    [
        ("--trays 64", "--trays 16 --nodes 4"),
        ("--nodes 64 --gpus-per-node 4", "--nodes 4 --trays 16 --gpus-per-tray 4"),
        ("--nodes 2 --trays 20", "--nodes 4 --trays 10"),
    ],
)
def test_trays_are_said_as_the_machine_takes_them(asked: str, tried: str) -> None:
    words = ("pick", "allreduce", "--machine", "gb200-nvl72", "--bytes", "64M")
    *_, line = run(*words, *asked.split(), code=2).stderr.splitlines()
    assert line == f"try: {shlex.join(['nccl-tuner', *words, *tried.split()])}"
    assert run(*shlex.split(line)[2:]).stdout


def test_what_the_command_line_does_not_have_is_not_changed() -> None:
    assert command(["pick", "allreduce", "--log", "a b.log"], [Remedy("nccl", "2.28.9")]) is None
    assert command(["pick"], []) is None
    assert command(["pick", "--env-file", "FILE"], [Remedy("env", None, "NCCL_ALGO")]) is None
    added = command(["pick", "--env", "TOKEN=a"], [Remedy("env", "0", "NCCL_NVLS_ENABLE")])
    assert added == "nccl-tuner pick --env NCCL_NVLS_ENABLE=0"
    assert command(["--nccl", "2.18.5", "a b"], [Remedy("nccl", "2.19.3")]) == "nccl-tuner --nccl 2.19.3 'a b'"
