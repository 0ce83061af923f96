"""A job's budget by its groups, each priced on its own communicator, and how its parallelism numbers ranks."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import trace_files
from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.base.nouns import Call
from tuner.cli import budget as budget_command
from tuner.jobs.traces.read import read
from tuner.jobs.workload import job
from tuner.jobs.workload.grouped import KINDS, JobBudget, JobGroups, ModelStep, kind_of_name, layout_of, of_lists
from tuner.jobs.workload.priced import PriceChange
from tuner.scenario.describe import describe

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "job.csv"
WHOLE = describe("dgx-h100", nodes=4, nccl="2.28.9")


def priced(path: Path, of: JobGroups) -> JobBudget:
    wanted = job.wanted_of(WHOLE)
    return of_lists([read(path, WHOLE.ranks)], job.BudgetComparison([WHOLE]), wanted, of)


@pytest.mark.parametrize("shared", [False, True])
def test_each_group_is_priced_on_its_ranks(tmp_path: Path, shared: bool) -> None:
    budget = priced(EXAMPLE, JobGroups(layout_of("tp=4,pp=2,ep=8,etp=1", 32), rank=5, shares=shared))
    ranks = {one.group: one.ranks for one in budget.groups}
    assert ranks == {"tp": "4-7", "dp": "1-13:4", "all": "0-31", "ep": "0-7", "pp": "5,21"}
    assert {one.group: one.groups for one in budget.groups} == {"tp": 8, "dp": 8, "all": 1, "ep": 4, "pp": 16}
    for one in budget.groups:
        rows = [
            line for line in EXAMPLE.read_text().splitlines() if line.endswith(("dtype,communicator", f",{one.group}"))
        ]
        own = tmp_path / f"{one.group}.csv"
        own.write_text("\n".join(line.rpartition(",")[0] for line in rows) + "\n")
        if one.group in ("ep", "pp"):
            assert one.budget.variants[0].total_us == 0
            assert one.budget.variants[0].exchanges
            continue
        part = WHOLE
        if one.group != "all":
            part = describe("dgx-h100", nodes=4, nccl="2.28.9", ranks=one.ranks, shared=shared)
        alone = job.of_files([own], job.BudgetComparison([part]), job.wanted_of(part))
        assert one.budget.variants[0].total_us == alone.variants[0].total_us
    assert budget.totals[0].total_us == sum(one.budget.variants[0].total_us for one in budget.groups)


def trace(path: Path, *calls: dict[str, Any]) -> Path:
    """A trace of PyTorch's profiler with an AllReduce of 1 MiB for each."""
    common = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1 << 18, "Out msg nelems": 1 << 18}
    events = [
        {"name": "record_param_comms", "ph": "X", "ts": at, "dur": 1, "args": {**common, **call, "External id": at}}
        for at, call in enumerate(calls, start=1)
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_trace_says_the_ranks_of_its_groups(tmp_path: Path) -> None:
    path = trace(
        tmp_path / "trace.json",
        {"Group size": 4, "Process Group Name": "1", "Process Group Ranks": "[0, 8, 16, 24]"},
        {"Group size": 4, "Process Group Name": "2", "Process Group Ranks": "[0, 1, 2, 3]"},
        {
            "Group size": 16,
            "Process Group Name": "3",
            "Process Group Ranks": "[0, 2, 4, ...]",
            "Global rank start": 0,
            "Global rank stride": 2,
        },
        {"Group size": 32, "Process Group Name": "0", "Process Group Description": "default_pg"},
        {"Group size": 6, "Process Group Name": "9"},
    )
    budget = priced(path, JobGroups())
    assert {one.group: one.ranks for one in budget.groups} == {"1": "0-24:8", "2": "0-3", "3": "0-30:2", "all": "0-31"}
    assert [str(left) for left in budget.left_out] == [
        "1 x allreduce: of 9, whose ranks the file does not say (job= can)"
    ]
    named = priced(path, JobGroups(layout_of("tp=4,pp=4", 32)))
    assert {one.group: one.ranks for one in named.groups}["tp"] == "0-3"


def test_a_flight_recorder_dump_says_them(tmp_path: Path) -> None:
    budget = priced(trace_files.flight_recorder(tmp_path / "dump"), JobGroups())
    assert [one.ranks for one in budget.groups] == ["0-15"]


def csv(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (["collective,bytes,ranks", "allreduce,1M,4"], "but several groups of the job have this size: tp, "),
        (["collective,bytes,ranks", "allreduce,1M,6"], "but no group of the job has this size"),
        (["collective,bytes,ranks,communicator", "allreduce,1M,8,tp"], "group tp of the job has 4"),
        (["collective,bytes,communicator", "allreduce,1M,cp"], "of group cp, of one rank in this job"),
        (["collective,bytes_per_rank,communicator", "allgather,1M,tp"], "a column ranks can"),
    ],
)
def test_calls_of_no_known_group_are_named(tmp_path: Path, rows: list[str], reason: str) -> None:
    with pytest.raises(BadInput, match="no calls to price") as refused:
        priced(csv(tmp_path / "calls.csv", *rows), JobGroups(layout_of("tp=4,pp=4", 32)))
    assert reason in str(refused.value)


def test_a_number_of_ranks_that_one_group_has_names_it(tmp_path: Path) -> None:
    path = csv(tmp_path / "calls.csv", "collective,bytes,ranks", "allreduce,1M,2", "allreduce,1M,")
    budget = priced(path, JobGroups(layout_of("pp=2", 32)))
    assert {one.group: one.ranks for one in budget.groups} == {"pp": "0,16", "all": "0-31"}


def test_a_rank_of_no_such_job_is_refused() -> None:
    with pytest.raises(BadInput, match="valid are 0 to 31"):
        priced(EXAMPLE, JobGroups(layout_of("tp=4", 32), rank=32))


def test_the_command_prints_groups() -> None:
    words = ("budget", str(EXAMPLE), "--machine", "dgx-h100", "--nodes", "4", "--nccl", "2.28.9", "--time", "nccl")
    shown = run(*words, "--job", "tp=4,pp=2,ep=8,etp=1").stdout
    assert "job tp=4,dp=4,pp=2,ep=8,etp=1, rank 0: 61.838 ms" in shown
    assert "== group pp ==" in shown
    answer = json.loads(run(*words, "--job", "tp=4,pp=2,ep=8,etp=1", "--json").stdout)
    assert [one["group"] for one in answer["groups"]] == ["tp", "dp", "all", "ep", "pp"]
    for more, says in (
        (("--job", "tp=4", "--csv"), "--csv only applies to a single communicator"),
        (("--job", "tp=4", "--ranks", "0-7"), "--ranks only applies to a single communicator"),
        (("--rank", "1"), "only applies with --job"),
        (("--shared",), "--shared needs --ranks, --job or --by-group"),
    ):
        assert says in run(*words, *more, code=2).stderr


def test_ranks_of_one_group_are_priced_without_a_job() -> None:
    part = replace(WHOLE, members=describe("dgx-h100", nodes=4, ranks="0-3").members)
    assert job.wanted_of(part).ranks == 4
    assert job.wanted_of(part).nodes == 1


LLAMA_70B = ("llama-3-70b", 70_600_000_000, 80, 8192, 8192)  # parameters, layers, hidden, tokens: its paper, table 3


def made(of: ModelStep, job_of: str, ranks: int) -> dict[tuple[str, str], tuple[int | None, float, int | None]]:
    """Bytes, calls and ranks, by the name of the call and its group."""
    calls = of.calls(layout_of(job_of, ranks)).calls
    assert len({(call.name, call.communicator) for call in calls}) == len(calls)
    return {(call.name, call.communicator or ""): (call.bytes, call.calls, call.ranks) for call in calls}


def test_the_calls_of_a_dense_model() -> None:
    name, parameters, layers, hidden, tokens = LLAMA_70B
    activation = tokens * hidden * 2  # bfloat16
    own = parameters // (8 * 4)  # of a rank with tp=8,pp=4; 512 / 32 = 16 replicas
    assert made(ModelStep(name, micro_batches=3), "tp=8,pp=4", 512) == {
        ("allreduce", "tp"): (activation, 4 * (layers // 4) * 3, 8),  # two forward, two backward
        ("send", "pp"): (activation, 3, 4),  # rank 0 is of the first stage: on to the next, and gradients back
        ("recv", "pp"): (activation, 3, 4),
        ("allreduce", "dp"): (2 * own, 1, 16),
    }


def test_the_calls_of_a_dense_model_in_shards() -> None:
    name, parameters, layers, hidden, _ = LLAMA_70B
    activation = 4096 * hidden * 4  # float32
    layer = parameters // (8 * 4) // (layers // 4) * 4  # bytes of one rank's part of a layer
    unit = 16 * 4  # an element of every replica
    padded = -(-layer // unit) * unit
    assert layer % unit  # so it is padded
    asked = ModelStep(name, 4096, sequence_parallel=True, zero=3, dtype=DataType.float32)
    assert made(asked, "tp=8,pp=4", 512) == {
        ("reducescatter", "tp"): (activation, 80, 8),
        ("allgather", "tp"): (activation, 80, 8),
        ("send", "pp"): (activation // 8, 1, 4),  # each rank's part of the sequence
        ("recv", "pp"): (activation // 8, 1, 4),
        ("allgather", "dp"): (padded, 2 * 20, 16),  # forward and again backward
        ("reducescatter", "dp"): (padded, 20, 16),
    }


@pytest.mark.parametrize("imbalance", [1.0, 2.5])
def test_the_calls_of_a_model_with_experts(imbalance: float) -> None:
    # mixtral-8x7b: 32 layers, hidden 4096, 2 experts a token, 45.1e9 of 46.7e9 parameters in experts (table 1)
    activation = 32768 * 4096 * 2
    assert made(ModelStep("mixtral-8x7b", imbalance=imbalance), "tp=2,pp=4,ep=4", 64) == {
        ("allreduce", "tp"): (activation, 4 * 8, 2),
        ("alltoall", "ep"): (int(2 * activation * imbalance), 4 * 8, 4),
        ("send", "pp"): (activation, 1, 4),
        ("recv", "pp"): (activation, 1, 4),
        ("allreduce", "dp"): (2 * 1_600_000_000 // 8, 1, 8),
        ("allreduce", "edp"): (2 * 45_100_000_000 // 8 // 4, 1, 2),
    }


def test_the_command_prices_a_model_as_a_list_of_the_same_calls(tmp_path: Path) -> None:
    words = ("--machine", "dgx-h100", "--nodes", "8", "--nccl", "2.28.9", "--job", "tp=2,pp=4,ep=4")
    shown = run("budget", "--model", "mixtral-8x7b", *words, "--imbalance", "2").stdout.splitlines()
    assert shown[0].startswith("8 x dgx-h100, 8 GPUs each, NCCL 2.28.9, job tp=2,dp=8,pp=4,ep=4, rank 0: ")
    assert shown[1].startswith("NCCL 2.28.9: 32 AllToAll take ")
    assert shown[2].startswith("assumed: sequences of 32768 tokens, 1 micro-batch of 1 sequence, bfloat16, no ZeRO")
    assert "2 times the mean" in shown[2]
    answer = json.loads(run("budget", "--model", "mixtral-8x7b", *words, "--imbalance", "2", "--json").stdout)
    path = csv(
        tmp_path / "calls.csv",
        "collective,bytes,calls,dtype,communicator",
        "allreduce,268435456,32,bfloat16,tp",
        "alltoall,1073741824,32,bfloat16,ep",
        "send,268435456,1,bfloat16,pp",
        "recv,268435456,1,bfloat16,pp",
        "allreduce,400000000,1,bfloat16,dp",
        "allreduce,2818750000,1,bfloat16,edp",
    )
    alike = json.loads(run("budget", str(path), *words, "--json").stdout)
    assert answer["totals"] == alike["totals"]
    assert answer["totals"][0]["calibrated"]["time_us"] > 0
    assert [one["group"] for one in answer["groups"]] == [one["group"] for one in alike["groups"]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "llama-3-71b"), "unknown model 'llama-3-71b'"),
        (("--model", "llama-3-70b", "--imbalance", "2"), "valid are 1 to 1"),
        (("--model", "mixtral-8x7b", "--job", "ep=4", "--imbalance", "0"), "valid are 1 to 4"),
        (("--model", "llama-3-70b", "--job", "cp=2"), "--job cp: the calls of a model split like this are not known"),
        (("--model", "mixtral-8x7b", "--job", "tp=2,ep=4,etp=1"), "use 2"),
        (("--model", "deepseek-v3", "--job", "pp=4"), "pp 4 does not divide layers 61"),
        (("--model", "llama-3-70b", "--rank", "1"), "--rank only applies to FILEs"),
        ((str(EXAMPLE), "--model", "llama-3-70b"), "not both"),
        ((), "FILEs with the calls of the job, or --model NAME"),
        ((str(EXAMPLE), "--zero", "3", "--sp"), "--sp, --zero only applies to a training step of a model"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in run("budget", *words, "--machine", "dgx-h100", "--nodes", "2", code=2).stderr


def test_groups_are_those_of_megatron() -> None:
    """Of 16 GPUs with tp=2 and pp=4, as the docstring of initialize_model_parallel has them."""
    layout = layout_of("tp=2,pp=4", 16)
    assert layout.groups("tp") == tuple((rank, rank + 1) for rank in range(0, 16, 2))
    assert layout.groups("pp") == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    assert layout.groups("dp") == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))


def test_context_parallel_ranks_lie_between_tensor_and_data_parallel_ones() -> None:
    layout = layout_of("tp=4,cp=2", 16)
    assert layout.groups("cp")[:4] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert layout.group_of("dp", 1) == (1, 9)
    assert layout.group_of("dp-cp", 1) == (1, 5, 9, 13)
    assert layout.group_of("tp-cp", 1) == tuple(range(8))


def test_experts_have_degrees_of_their_own() -> None:
    """Without context parallelism, and with another tensor parallelism."""
    layout = layout_of("tp=2,cp=2,pp=2,ep=4", 32)
    assert layout.group_of("ep", 0) == (0, 2, 4, 6)
    assert layout.group_of("edp", 0) == (0, 8)
    split = layout_of("tp=2,cp=2,pp=2,ep=4,etp=1", 32)
    assert split.group_of("ep", 0) == (0, 1, 2, 3)
    assert split.group_of("edp", 0) == (0, 4, 8, 12)
    assert "etp" not in split.kinds


def test_replicas_are_outside_of_shards() -> None:
    """HSDP: torchtitan's mesh is pp, dp_replicate, dp_shard, cp, tp, the outermost first."""
    layout = layout_of("tp=2,replicate=2", 16)
    assert layout.group_of("dp-shard", 0) == (0, 2, 4, 6)
    assert layout.group_of("dp-replicate", 0) == (0, 8)


def test_an_order_may_have_pipelines_inside() -> None:
    layout = layout_of("tp=2,pp=2,order=tp-cp-ep-pp-dp", 8)
    assert layout.group_of("pp", 0) == (0, 2)
    assert layout.group_of("dp", 0) == (0, 4)


@pytest.mark.parametrize("text", ["tp=2,cp=2,pp=2,ep=4", "tp=8", "replicate=4,pp=2", "tp=2,ep=2,order=tp-cp-pp-dp-ep"])
def test_every_rank_is_in_one_group_of_each_kind(text: str) -> None:
    layout = layout_of(text, 32)
    for kind in KINDS:
        if kind not in ("ep", "etp", "etp-ep", "edp") or layout.ep > 1:
            assert sorted(rank for group in layout.groups(kind) for rank in group) == list(range(32))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("3 (TENSOR_MODEL_PARALLEL_GROUP)", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp-cp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "edp"),
        ("0 (default_pg)", "all"),
        ("mesh_dp_shard_cp", "dp-shard-cp"),
        ("mesh_tp", "tp"),
        ("dp-replicate", "dp-replicate"),
        ("PP", "pp"),
        ("0x5eed", None),
    ],
)
def test_frameworks_names_are_known(name: str, kind: str | None) -> None:
    assert kind_of_name(name) == kind


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp=3", "tp x cp x pp is 3, which does not divide the 32 ranks"),
        ("tp=64", "tp x cp x pp is 64, which does not divide the 32 ranks"),
        ("tp=64,dp=1", "tp x cp x pp x dp is 64, but 32"),
        ("tp=2,dp=2", "is 4, but 32"),
        ("tp", "give tp=N"),
        ("vp=2", "give tp=N"),
        ("tp=2,tp=2", "give tp=N"),
        ("tp=0", "a whole number from 1"),
        ("order=tp-dp", "name each of"),
        ("replicate=3", "3 replicas do not divide the 32"),
        ("ep=5", "does not divide the 32"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        layout_of(text, 32)


def change(us: float, before: str = "Ring/LL", after: str = "Ring/LL") -> PriceChange:
    call = Call(Collective.AllReduce, DataType.float32, Op.sum, 1024)
    return PriceChange(call, 1, before, after, 10.0, 10.0 + us, us)


@pytest.mark.parametrize("us", [0.49, -0.49, 0.51, -0.51, 40.0])
def test_differences_below_half_a_microsecond_are_not_shown(us: float, capsys: pytest.CaptureFixture[str]) -> None:
    """The last figure of a table's milliseconds; another pick is shown however little it changes."""
    other = SimpleNamespace(name="2.28.9", changes=(change(us),), not_compared_calls=None, difference_us=us)
    budget_command._print_changes("2.27.7", other)  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    assert ("AllReduce" in printed) == (abs(us) > 0.5)
    assert ("times that differ by less than 0.5 us" in printed) == (abs(us) < 0.5)
    other.changes = (change(us, after="Tree/LL"),)
    budget_command._print_changes("2.27.7", other)  # type: ignore[arg-type]
    assert "Tree/LL" in capsys.readouterr().out
