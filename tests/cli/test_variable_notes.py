"""Variables as NCCL reads them: what it ignores or takes for something else is said, and the answer stays NCCL's."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tuner import release
from tuner.cli import everything
from tuner.oracle import library
from tuner.release.variables import ignored
from tuner.scenario import notes

PICK = ("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--bytes", "1K,1M,64M")


@pytest.mark.parametrize(
    ("nccl", "variable"),
    [
        ("2.22.3", "NCCL_PAT_ENABLE=1"),
        ("2.24.3", "NCCL_CTA_POLICY=1"),
        ("2.25.1", "NCCL_LL128_C2C=0"),
        ("2.28.9", "NCCL_MULTI_RANK_GPU_ENABLE=1"),
    ],
)
def test_a_variable_of_other_releases_changes_nothing_and_is_said(nccl: str, variable: str) -> None:
    plain = run(*PICK, "--nccl", nccl, "--json")
    done = run(*PICK, "--nccl", nccl, "--json", "--env", variable)
    assert done.stderr == f"note: {variable.partition('=')[0]}: NCCL {nccl} does not read it\n"
    assert json.loads(done.stdout) == json.loads(plain.stdout)


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
def test_what_a_release_ignores_is_not_in_its_library(nccl: str) -> None:
    """NCCL's variables are texts in it, as every one that the release reads shows."""
    read, content = release.load(nccl), Path(library.find(nccl).path).read_bytes()
    everywhere = {name for one in release.names() for name in release.load(one).listed_variables}
    assert [name for name in ignored(read, everywhere) if f"{name}\0".encode() in content] == []
    assert b"NCCL_ALGO\0" in content


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("NCCL_NTHREADS=abc", "reads it as 0, which counts as not set"),
        ("NCCL_NTHREADS=-5", "counts it as not set"),
        ("NCCL_NTHREADS=100", "counts it as 512"),
        ("NCCL_NTHREADS=32", "counts it as 64"),
        ("NCCL_NTHREADS=0100", "reads it as 64"),
        ("NCCL_NTHREADS=99999999999999999999", "ignores it, as it is no whole number of 64 bits"),
        ("NCCL_MIN_NCHANNELS=-5", "counts it as no minimum"),
        ("NCCL_MIN_NCHANNELS=99", "counts it as 64"),
        ("NCCL_MAX_NCHANNELS=0", "counts it as 1"),
        ("NCCL_CROSS_NIC=yes", "reads it as 0"),
    ],
)
def test_a_value_that_nccl_takes_for_another_is_said(variable: str, says: str) -> None:
    done = run(*PICK, "--nccl", "2.28.9", "--env", variable)
    assert done.stderr == f"note: {variable}: NCCL 2.28.9 {says}\n"


@pytest.mark.parametrize(
    "variable",
    [
        *(
            "NCCL_NTHREADS=256",
            "NCCL_NTHREADS=512",
            "NCCL_NTHREADS=64",
            "NCCL_NTHREADS=0x100",
            "NCCL_NTHREADS=",
            "NCCL_MIN_NCHANNELS=4",
            "NCCL_MAX_NCHANNELS=-2",
        ),
        *("NCCL_P2P_LEVEL=NVL", "NCCL_ALGO=Ring", "NCCL_NET_GDR_LEVEL=PHB", "NCCL_DEBUG=INFO", "NCCL_IB_HCA=mlx5"),
    ],
)
def test_a_value_that_is_taken_as_it_stands_is_not(variable: str) -> None:
    assert run(*PICK, "--nccl", "2.28.9", "--env", variable).stderr == ""


def test_without_a_digit_newer_releases_take_their_default() -> None:
    newest = release.load(release.names()[-1])
    (said,) = notes.of_variables(newest, {"NCCL_NTHREADS": "abc"})
    assert said == f"NCCL_NTHREADS=abc: NCCL {newest.name} ignores it, as it is no whole number of 64 bits"


def test_one_variable_has_one_value() -> None:
    done = run(*PICK, "--nccl", "2.28.9", "--env", "NCCL_ALGO=Ring", "--env", "NCCL_ALGO=Tree", code=2)
    assert done.stderr == "nccl-tuner: --env NCCL_ALGO=Ring and NCCL_ALGO=Tree: valid: one of them\n"


def test_the_answer_comes_before_its_notes_and_a_refusal_after_them() -> None:
    asked = ["pick", "allreduce", "--machine", "p5.48xlarge", "--nccl", "2.28"]
    answered = CliRunner().invoke(everything, [*asked, "--bytes", "1M"])
    assert answered.exit_code == 0
    assert answered.output.startswith("AllReduce on 1 x aws-p5-rdma")
    assert "\nnote: NCCL 2.28 is 2.28.9 here" in answered.output
    refused = CliRunner().invoke(everything, [*asked, "--ranks", "99"])
    assert refused.output.startswith("note: NCCL 2.28 is 2.28.9 here")
    assert refused.exit_code != 0
