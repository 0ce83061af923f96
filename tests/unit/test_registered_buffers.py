"""Registered and captured buffers, by numbers that libnccl launched with."""

import pytest

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


@pytest.mark.parametrize(
    ("name", "buffers", "since"),
    [
        ("2.18.1", Buffers.window, "2.27.3"),
        ("2.26.2", Buffers.window, "2.27.3"),
        ("2.18.3", Buffers.registered, "2.19.3"),
    ],
)
def test_a_release_without_such_buffers_names_the_first_that_has_them(name: str, buffers: Buffers, since: str) -> None:
    selection = Selection(Scenario(name, 1, "dgx-h100").communicator())
    with pytest.raises(BadInput, match=f"valid: {since} and later"):
        selection.check_buffers(buffers)


@pytest.mark.parametrize(("name", "captured"), [("2.21.5", 4), ("2.22.3", 16), ("2.23.4", 16), ("2.24.3", 4)])
def test_two_releases_do_not_register_what_is_captured(name: str, captured: int) -> None:
    selection = Selection(Scenario(name, machine="dgx-h100", nodes=1).communicator())
    for buffers, channels in ((Buffers.plain, 16), (Buffers.registered, 4), (Buffers.graph, captured)):
        request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=buffers)
        pick = selection.pick(request, 64 << 20)
        assert (pick.algorithm, pick.channels) == (Algorithm.NVLS, channels), buffers
