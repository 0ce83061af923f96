"""A budget of calls on windows and registered buffers: by what NCCL runs, each time by the model that has it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tests.support.tables_on_windows import observed
from tuner import release
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import COPY_ENGINES, Request
from tuner.emulator.selection import Selection
from tuner.jobs.workload.count import Entry
from tuner.jobs.workload.price import BudgetVariant, Price, Unpriced, prices
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

AG, AR, RS = Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter
WITH_WINDOWS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
B200 = Scenario(nccl="2.30.7", machine="dgx-b200", nodes=1)
CALLS = "collective,bytes,calls\nallgather,1M,3\nallgather,2G,2\nallreduce,8K,5\nbroadcast,1M,7\n"


def entries(buffers: Buffers, *calls: tuple[Collective, int]) -> list[Entry]:
    return [
        Entry(Request(collective, DataType.float32, Op.sum, buffers=buffers), size, 1) for collective, size in calls
    ]


def of_window(nccl: str, *calls: tuple[Collective, int], **environment: str) -> list[Price | Unpriced]:
    scenario = replace(B200, nccl=nccl, environment=environment)
    return prices(BudgetVariant("", scenario), entries(Buffers.window, *calls))


def test_each_call_is_priced_by_what_runs_it() -> None:
    kernel, copied, plain = of_window("2.30.7", (AG, 1 << 20), (AG, 2 << 30), (Collective.Broadcast, 1 << 20))
    assert isinstance(kernel, Price)
    assert kernel.bypass is not None
    assert (kernel.name, kernel.channels) == ("symmetric kernel AllGather_STMC", 2)
    assert f"{kernel.time_us:.2f}" == "14.16"
    assert copied == Unpriced("runs on copy engines, for which NCCL has no time model")
    assert isinstance(plain, Price)
    selection = Selection(replace(B200, environment={}).communicator())
    broadcast = Request(Collective.Broadcast, DataType.float32, Op.sum, buffers=Buffers.window)
    assert plain.time_us == pytest.approx(float(selection.classic_pick(broadcast, 1 << 20).time_us[0]))


def test_a_budget_says_whose_times_it_has(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text(CALLS)
    described = "--machine", "dgx-b200", "--nccl", "2.30.7", "--buffers", "window"
    found = json.loads(run("budget", str(path), *described, "--setting", "NCCL_WIN_ENABLE=0", "--json").stdout)
    windows, without = found["variants"]
    by_entry = {(entry["collective"], entry["bytes"]): entry["prices"] for entry in found["entries"]}
    gathered, copied = by_entry["AllGather", 1 << 20][0], by_entry["AllGather", 2 << 30][0]
    assert (gathered["bypass"], gathered["algorithm"]) == ("symmetric kernel AllGather_STMC", None)
    assert copied["reason"] == "runs on copy engines, for which NCCL has no time model"
    assert (windows["priced_calls"], windows["unpriced_calls"]) == (15, 2)
    reduced, sent = by_entry["AllReduce", 8 << 10][0], by_entry["Broadcast", 1 << 20]
    assert windows["symmetric_us"] == pytest.approx(gathered["total_us"] + reduced["total_us"])
    assert windows["total_us"] == pytest.approx(windows["symmetric_us"] + sent[0]["total_us"])
    assert "symmetric_us" not in without
    # Calls by one model in both variants alone make up a difference: the Broadcasts.
    assert without["not_compared_calls"] == 8
    assert without["difference_us"] == pytest.approx(sent[1]["total_us"] - sent[0]["total_us"])
    text = run("budget", str(path), *described, "--setting", "NCCL_WIN_ENABLE=0").stdout
    assert "ms by NCCL's model of symmetric kernels" in text
    assert "not compared: 8 calls on a symmetric kernel in one" in text
    assert "2 x AllGather float32 2 GiB: runs on copy engines, for which NCCL has no time model" in text
    labels = run("budget", str(path), *described, "--prometheus").stdout
    assert 'algo_proto="AllGather_STMC"' in labels


def test_registered_buffers_and_in_place(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text("collective,bytes,calls\nallreduce,1G,1\n")
    scenario = "--machine", "dgx-1v", "--gpus-per-node", "4", "--nccl", "2.28.9"
    twenty = "--env", "NCCL_MIN_NCHANNELS=20", "--env", "NCCL_MAX_NCHANNELS=20", "--env", "NCCL_ALGO=Ring"
    channels = [
        json.loads(run("budget", str(path), *scenario, *twenty, *buffers, "--json").stdout)["entries"][0]["prices"][0][
            "channels"
        ]
        for buffers in ((), ("--buffers", "registered"), ("--buffers", "graph"), ("--buffers", "graph", "--in-place"))
    ]
    assert channels == [20, 16, 16, 20]


def test_a_table_prices_what_it_brings_about(tmp_path: Path) -> None:
    """2.29.2 asks the tuner before it takes a kernel of low latency."""
    table = tmp_path / "t"
    table.write_text("nccl-tuner-table 1\nallreduce -> ring/simple\n")
    scenario = replace(B200, nccl="2.29.2")
    (own,) = prices(BudgetVariant("", scenario), entries(Buffers.window, (AR, 1 << 10)))
    (tuned,) = prices(BudgetVariant("", scenario, table), entries(Buffers.window, (AR, 1 << 10)))
    assert isinstance(own, Price)
    assert own.bypass is not None
    assert isinstance(tuned, Price)
    assert tuned.name == "Ring/Simple"


@pytest.mark.live
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_libnccl_runs_what_is_priced(name: str) -> None:
    scenario = replace(B200, nccl=name, gpus_per_node=4)
    sizes = [1 << power for power in (12, 18, 20, 26, 30)]
    with Oracle(scenario.resolve().oracle_configuration_to_launch()) as oracle:
        for collective in (AG, AR, RS, Collective.Broadcast):
            wanted = entries(Buffers.window, *((collective, size) for size in sizes))
            real = oracle.launch_on_any_path(wanted[0].request, sizes)
            for price, launched in zip(prices(BudgetVariant("", scenario), wanted), real, strict=True):
                if launched == COPY_ENGINES:
                    assert isinstance(price, Unpriced)
                else:
                    assert not isinstance(price, Unpriced)
                    assert (price.name, price.channels) == observed(launched)
