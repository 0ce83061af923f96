"""The names of variables in each release's libnccl, as tables/variables.toml has them."""

import pytest

from tests.scripts.add_release import variables_in
from tests.support.available_releases import HERE
from tuner import release
from tuner.oracle import library
from tuner.release.variables import in_library


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
def test_names_are_those_of_the_library(nccl: str) -> None:
    of_another_text = {"NCCL_IPC_USE_ABSTRACT_SOCKET"}  # its end, in some
    assert in_library(nccl) == variables_in(library.find(nccl).path) | of_another_text


def test_every_release_has_a_list() -> None:
    for name in release.names():
        assert {"NCCL_ALGO", "NCCL_DMABUF_ENABLE", "NCCL_IB_MERGE_VFS", "NCCL_HOSTID"} <= in_library(name), name
    assert "NCCL_PAT_ENABLE" not in in_library("2.22.3")
    for name in release.names():  # debug subsystems, a level: names, but of no variables
        assert not {"NCCL_VERSION", "NCCL_GRAPH", "NCCL_COLL", "NCCL_LOG_WARN"} & in_library(name)


def test_a_release_without_a_list_is_like_the_one_before() -> None:
    assert in_library("99.9.9") == in_library(release.names()[-1])
