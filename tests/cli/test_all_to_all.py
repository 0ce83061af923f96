"""``pick alltoall``: a measured time, and nothing that NCCL is said to have picked."""

import json

import pytest

from tests.support.command_line import run
from tuner.times import measured

PICK = ("pick", "alltoall", "--machine", "dgx-h100")


def test_it_has_a_time_with_an_interval_and_no_pick() -> None:
    answers = json.loads(run(*PICK, "--bytes", "1K,1M,64M", "--json").stdout)
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
    nothing, something = json.loads(run(*words, "--json").stdout)
    assert nothing["no_time"] == "nothing is launched for less than one float32 for each rank, 32 bytes"
    assert "calibrated" not in nothing
    assert nothing["launch"]["kernels"] == []
    assert len(something["launch"]["kernels"]) == 1
    assert ("calibrated" in something) == (call == "alltoall")
    assert "no time: nothing is launched for less than one float32" in run(*words).stdout


def test_it_is_near_what_was_measured() -> None:
    (measured_us,) = (
        row.time_us
        for row in measured.load("h100-8x__2.29.2__aiconfigurator").rows
        if (row.collective, row.dtype.name, row.gpus_per_node, row.bytes) == ("alltoall", "float16", 8, 1 << 28)
    )
    (answer,) = json.loads(run(*PICK, "--bytes", "256M", "--nccl", "2.29.2", "--json").stdout)
    assert answer["calibrated"]["low_us"] < measured_us < answer["calibrated"]["high_us"]


def test_people_read_whose_time_it_is() -> None:
    out = run(*PICK, "--bytes", "1M").stdout
    assert "NCCL makes it of sends and receives: it picks no algorithm and predicts no time" in out
    assert "calibrated times: by the calibration dgx-h100" in out


@pytest.mark.parametrize(
    ("machine", "said"),
    [("pcie-l40s", "joined by"), ("alps", "no measured times of AllToAll in the calibration alps")],
)
def test_without_measured_times_there_is_no_time(machine: str, said: str) -> None:
    words = "pick", "alltoall", "--machine", machine, "--bytes", "1K,1M"
    assert said in run(*words, "--time", "calibrated", code=2).stderr
    for each in json.loads(run(*words, "--json").stdout):
        assert said in each["no_time"]
        assert "calibrated" not in each
        assert each["launch"]["rank"] == 0
    assert said in run(*words).stdout


def test_every_peer_has_a_send_and_a_receive() -> None:
    (answer,) = json.loads(run(*PICK, "--bytes", "1M", "--json").stdout)
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
    assert "--rank and --peer need --launch for collectives" in said
    assert "rank 8; valid: 0 to 7" in run(*PICK, "--rank", "8", code=2).stderr
    assert "sends itself" in run("pick", "send", "--peer", "0", *PICK[2:], code=2).stderr
