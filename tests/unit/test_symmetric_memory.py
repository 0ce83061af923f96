"""On which links of a node NCCL has symmetric memory, and what windows are there."""

import pytest

from tests.support.command_line import run
from tuner import api
from tuner.emulator.rules import symmetric_variables

APART, ALL, NONE = "dgx-1v", "pcie-l40s", "pcie-l40s-no-p2p"  # of some GPUs far apart, peer-to-peer of all, of some
KERNEL, COPIES, ALGORITHM = "symmetric kernel AllGather_ST", "copy engines", None


def taken(machine: str, nccl: str, **described: object) -> tuple[bool, str | None]:
    """Whether there is symmetric memory, and what takes an AllGather of 1 MiB on windows."""
    communicator = api.communicator(machine, nodes=1, nccl=nccl, **described)  # type: ignore[arg-type]
    (path,) = communicator.selection.non_classic_paths(api.request("allgather", buffers="window"), [1 << 20])
    return symmetric_variables.supported(communicator.selection.communicator), None if path is None else path.name


@pytest.mark.parametrize(
    ("nccl", "joined", "far"),
    [
        ("2.27.7", (True, KERNEL), (False, ALGORITHM)),
        ("2.28.3", (True, KERNEL), (False, ALGORITHM)),
        ("2.28.9", (True, KERNEL), (True, KERNEL)),
        ("2.29.2", (True, ALGORITHM), (True, ALGORITHM)),
        ("2.32.3", (True, ALGORITHM), (True, ALGORITHM)),
    ],
)
def test_without_nvlink_between_all_gpus(
    nccl: str, joined: tuple[bool, str | None], far: tuple[bool, str | None]
) -> None:
    """By peer-to-peer within NCCL_P2P_LEVEL, from 2.28.7 on by CUDA's; kernels from 2.29 on want NVLink."""
    assert taken(ALL, nccl) == joined
    assert taken(APART, nccl) == far
    assert taken(NONE, nccl) == (False, ALGORITHM)


@pytest.mark.parametrize(("nccl", "level", "expected"), [("2.28.3", "NVL", False), ("2.28.9", "NVL", True)])
def test_the_level_of_peer_to_peer(nccl: str, level: str, expected: bool) -> None:
    assert taken(ALL, nccl, env={"NCCL_P2P_LEVEL": level, "NCCL_NET_DISABLE_INTRA": "1"})[0] is expected


@pytest.mark.parametrize("machine", [ALL, APART])
def test_copy_engines_need_no_nvlink(machine: str) -> None:
    assert taken(machine, "2.30.7", env={"NCCL_CTA_POLICY": "ZERO"}) == (True, COPIES)


def test_denied_peer_to_peer_may_be_ignored() -> None:
    assert taken(NONE, "2.28.9", env={"NCCL_IGNORE_DISABLED_P2P": "2"})[0]
    assert not taken(NONE, "2.28.9", env={"NCCL_IGNORE_DISABLED_P2P": "1"})[0]


def test_small_arguments_matter_in_2_28_3_where_there_is_symmetric_memory() -> None:
    words = "pick", "allreduce", "--nccl", "2.28.3", "--nodes", "1", "--env", "NCCL_WORK_ARGS_BYTES=400", "--bytes", "8"
    assert "too small for a symmetric kernel" in run(*words, "--machine", ALL, code=2).stderr
    assert "Ring/LL" in run(*words, "--machine", NONE).stdout
