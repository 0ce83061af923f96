"""The names of variables in each release's libnccl, as tables/variables.toml has them."""

import re
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tuner import release
from tuner.oracle import library
from tuner.release.variables import in_library

NAME = re.compile(rb"(?<![A-Za-z0-9_])(NCCL_[A-Z0-9_]*[A-Z0-9])\0")


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
def test_names_are_those_of_the_library(nccl: str) -> None:
    found = {name.decode() for name in NAME.findall(Path(library.find(nccl).path).read_bytes())}
    assert in_library(nccl) == found | {"NCCL_IPC_USE_ABSTRACT_SOCKET"}  # the end of another text in some


def test_every_release_has_a_list() -> None:
    for name in release.names():
        assert {"NCCL_ALGO", "NCCL_DMABUF_ENABLE", "NCCL_IB_MERGE_VFS", "NCCL_HOSTID"} <= in_library(name), name
    assert "NCCL_PAT_ENABLE" not in in_library("2.22.3")
    assert "NCCL_VERSION" not in in_library("2.28.9")


def test_a_release_without_a_list_is_like_the_one_before() -> None:
    assert in_library("99.9.9") == in_library(release.names()[-1])
