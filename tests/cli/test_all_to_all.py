"""``pick alltoall``: a measured time, and nothing that NCCL is said to have picked."""

import json

import pytest

from tests.support.command_line import run
from tuner.api import communicator
from tuner.base.errors import BadInput
from tuner.base.names import DataType, P2pOperation
from tuner.times import measured
from tuner.times.measured.samples import Point

PICK = ("pick", "alltoall", "--machine", "dgx-h100")


def test_it_has_a_time_with_an_interval_and_no_pick() -> None:
    answers = json.loads(run(*PICK, "--bytes", "1K,1M,64M", "--json").stdout)["calls"]
    assert [each["bytes"] for each in answers] == [1 << 10, 1 << 20, 1 << 26]
    for each in answers:
        assert "pick" not in each
        assert "cost_us" not in each
        assert each["calibrated"]["low_us"] < each["calibrated"]["time_us"] < each["calibrated"]["high_us"]
        assert each["busbw_gbs"] == pytest.approx(each["bytes"] * 7 / 8 / each["calibrated"]["time_us"] / 1e3)
        assert each["calibration"]["name"] == "dgx-h100"
        assert each["measured"]


@pytest.mark.parametrize("call", ["alltoall", "gather", "scatter"])
def test_what_launches_nothing_has_no_time(call: str) -> None:
    words = ("pick", call, "--machine", "dgx-h100", "--bytes", "31,32")
    nothing, something = json.loads(run(*words, "--json").stdout)["calls"]
    assert nothing["no_time"] == "nothing is launched for less than one float32 per rank, which is 32 bytes"
    assert "calibrated" not in nothing
    assert nothing["launch"]["kernels"] == []
    assert len(something["launch"]["kernels"]) == 1
    assert ("calibrated" in something) == (call == "alltoall")
    assert "no time: nothing is launched for less than one float32" in run(*words).stdout


UNEVEN = (*PICK, "--gpus-per-node", "4", "--parts")


def test_unequal_parts_are_messages_of_their_own() -> None:
    """Rank 1 gets 1 MiB from everyone, and sends nothing to the last."""
    answer = json.loads(run(*UNEVEN, "4M,1M,512K,0", "--rank", "1", "--json").stdout)
    transfers = [each for kernel in answer["kernels"] for each in kernel["transfers"]]
    sent = {each["peer"]: each["bytes"] for each in transfers if each["sends"]}
    received = {each["peer"]: each["bytes"] for each in transfers if not each["sends"]}
    assert sent == {0: 4 << 20, 1: 1 << 20, 2: 512 << 10}
    assert received == dict.fromkeys(range(4), 1 << 20)
    whole = ",".join(f"{16 * (4 * row + column)}" for row in range(4) for column in range(4))
    answer = json.loads(run(*UNEVEN, whole, "--rank", "2", "--json").stdout)
    received = {each["peer"]: each["bytes"] for each in answer["kernels"][0]["transfers"] if not each["sends"]}
    assert received == {0: 32, 1: 96, 2: 160, 3: 224}


def test_unequal_parts_that_none_can_have() -> None:
    assert "3 parts do not fit 4 ranks: give 4 parts, or 16" in run(*UNEVEN, "4,4,4", code=2).stderr
    assert "a part of 6 bytes is not a whole number" in run(*UNEVEN, "4,4,4,6", code=2).stderr
    assert "--parts only applies with alltoall" in run("pick", "gather", *PICK[2:], "--parts", "4", code=2).stderr
    assert "--parts" in run("pick", "alltoallv", *PICK[2:], code=2).stderr


def test_python_picks_it_too() -> None:
    eight = communicator("dgx-h100")
    picked = eight.pick("alltoall", [1 << 10, 1 << 20], rank=3)
    assert [each.collective for each in picked] == ["AllToAll", "AllToAll"]
    assert picked[1].launch is not None
    assert picked[1].launch.rank == 3
    assert eight.pick("all_to_all", 1 << 20).columns()["bytes"] == [1 << 20]
    with pytest.raises(BadInput, match="AllToAll has no op; valid: dtype, rank, root"):
        eight.pick("alltoall", 8, op="sum")


def test_it_is_near_what_was_measured() -> None:
    (measured_us,) = (
        row.median_us
        for row in measured.load("h100-8x__2.29.2__aiconfigurator").blocks
        if row.point == Point(P2pOperation.AllToAll, 1 << 28, DataType.float16) and row.gpus_per_node == 8
    )
    (answer,) = json.loads(run(*PICK, "--bytes", "256M", "--nccl", "2.29.2", "--json").stdout)["calls"]
    assert answer["calibrated"]["low_us"] < measured_us < answer["calibrated"]["high_us"]


def test_people_read_whose_time_it_is() -> None:
    out = run(*PICK, "--bytes", "1M").stdout
    assert "NCCL makes this call from sends and receives: it picks no algorithm and predicts no time" in out
    assert "calibrated times come from the calibration dgx-h100" in out


@pytest.mark.parametrize(
    ("machine", "said"),
    [("pcie-l40s", "joined by"), ("alps", "the calibration alps has no measured times of AllToAll")],
)
def test_without_measured_times_there_is_no_time(machine: str, said: str) -> None:
    words = "pick", "alltoall", "--machine", machine, "--bytes", "1K,1M"
    assert said in run(*words, "--time", "calibrated", code=2).stderr
    for each in json.loads(run(*words, "--json").stdout)["calls"]:
        assert said in each["no_time"]
        assert "calibrated" not in each
        assert each["launch"]["rank"] == 0
    assert said in run(*words).stdout


def test_every_peer_has_a_send_and_a_receive() -> None:
    (answer,) = json.loads(run(*PICK, "--bytes", "1M", "--json").stdout)["calls"]
    (kernel,) = answer["launch"]["kernels"]
    assert sorted((each["peer"], each["sends"]) for each in kernel["transfers"]) == [
        (peer, sends) for peer in range(8) for sends in (False, True)
    ]
    assert {each["bytes"] for each in kernel["transfers"]} == {1 << 17}


def test_a_send_over_the_network_has_no_time() -> None:
    out = run("pick", "send", "--peer", "8", "--machine", "dgx-h100", "--nodes", "2", "--bytes", "1M").stdout
    assert "no time: NCCL has no time model of Send" in out


def test_options_of_sends_are_not_those_of_collectives() -> None:
    said = run("pick", "allreduce", "--peer", "1", *PICK[2:], code=2).stderr
    assert "--peer only applies with --launch" in said
    assert "rank 8 is not in the communicator: valid are 0 to 7" in run(*PICK, "--rank", "8", code=2).stderr
    assert "sends itself" in run("pick", "send", "--peer", "0", *PICK[2:], code=2).stderr
