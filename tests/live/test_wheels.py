"""The CUDA that NVIDIA's wheels are built for, and the GPUs that the code in them runs on, against the libraries."""

import re
from mmap import ACCESS_READ, mmap

import pytest

from tests.support.available_releases import HERE
from tuner import release
from tuner.bench.gpu.kernels import runs_on
from tuner.machine import gpus
from tuner.oracle import library
from tuner.scenario import Scenario
from tuner.scenario.notes import cuda_of_wheel, of_scenario

ANNOUNCED = 107  # Rubin, whose code nobody has seen run
CAPABILITIES = sorted({gpus.load(name).compute_capability for name in gpus.names()} - {ANNOUNCED})
SAYS_CUDA = re.compile(rb"NCCL version ([\d.]+)\+cuda([\d.]+)")


@pytest.mark.live
@pytest.mark.parametrize("name", HERE)
def test_a_wheel_has_code_for_the_gpus_of_its_cuda(name: str) -> None:
    path = library.find(name).path  # the installed one may be in no cache
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        assert set(SAYS_CUDA.findall(content)) == {
            (name.encode(), ".".join(map(str, cuda_of_wheel(name) or ())).encode())
        }
    runs = {each: runs_on(path, each) for each in CAPABILITIES if each >= 70}
    assert runs == {each: cuda_of_wheel(name) >= gpus.first_cuda(each) for each in runs}
    assert runs[90]


def test_every_release_with_a_wheel_has_one() -> None:
    assert all(cuda_of_wheel(name) for name in release.names())
    assert cuda_of_wheel("2.26.3") is None


@pytest.mark.parametrize(
    ("machine", "nccl", "said"),
    [
        (
            "dgx-spark",
            "2.18.1",
            "has no code for compute capability 12.1: there it runs in a build for CUDA 12.8 or later",
        ),
        ("dgx-b200", "2.26.2", "for CUDA 12.2, has no code for compute capability 10.0"),
        ("dgx-spark", "2.26.5", None),
        ("dgx-h100", "2.18.1", None),
    ],
)
def test_a_pick_for_gpus_that_a_wheel_has_no_code_for_is_noted(machine: str, nccl: str, said: str | None) -> None:
    found = [each for each in of_scenario(Scenario(nccl=nccl, machine=machine, nodes=2)) if "wheel" in each]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
    assert all("from 2.26.5 on" in each for each in found)
