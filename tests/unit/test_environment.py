"""The grammar of NCCL_ALGO and NCCL_PROTO, as parseList reads it from 2.24 on."""

import pytest

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.release.environment import Environment, allowed, parse_assignments


def names(text: str) -> dict[str, set[str]]:
    rows = allowed(text, "NCCL_ALGO", Algorithm)
    return {collective.name: {a.name for a, on in row.items() if on} for collective, row in rows.items()}


def test_a_list_without_a_collective_holds_for_all() -> None:
    assert names("ring,TREE") == {collective.name: {"Ring", "Tree"} for collective in Collective}


def test_a_later_entry_overwrites_its_collective_whole() -> None:
    found = names("ring;allreduce:tree")
    assert found["AllReduce"] == {"Tree"}
    assert found["Broadcast"] == {"Ring"}


def test_a_first_entry_with_a_collective_leaves_the_others_alone() -> None:
    assert names("allgather:nvls") == {"AllGather": {"NVLS"}}


def test_caret_inverts() -> None:
    rows = allowed("^LL128;allreduce:LL128", "NCCL_PROTO", Protocol)
    assert rows[Collective.Reduce] == {Protocol.LL: True, Protocol.LL128: False, Protocol.Simple: True}
    assert rows[Collective.AllReduce] == {Protocol.LL: False, Protocol.LL128: True, Protocol.Simple: False}


def test_an_empty_value_changes_nothing() -> None:
    assert names("") == {}


REFUSED = ["rings", "ring;tree", "ring;foo:tree", "foo:tree", ";ring", " ring", "ring, tree", ":"]


@pytest.mark.parametrize("text", REFUSED)
def test_what_nccl_refuses_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="NCCL_ALGO"):
        allowed(text, "NCCL_ALGO", Algorithm)


def test_numbers_are_read_as_strtoll_reads_them() -> None:
    environment = Environment({"NCCL_A": "0x10", "NCCL_B": "", "NCCL_C": "99999999999999999999", "NCCL_D": "3x"})
    assert [environment.number(f"NCCL_{name}", -2) for name in "ABCDE"] == [16, -2, -2, 3, -2]


@pytest.mark.parametrize("assignment", ["NCCL_ALGO", "=x", "A B=x"])
def test_assignments_must_be_nccl_variables(assignment: str) -> None:
    with pytest.raises(BadInput, match="NCCL_NAME=VALUE"):
        parse_assignments((assignment,))
