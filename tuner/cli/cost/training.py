"""``nccl-tuner cost step``: the communication of training steps, and how much computation hides it."""

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

import click

from tuner.answers import training_step
from tuner.answers.calibrated import TimesWanted
from tuner.answers.training_step import StepCall, StepReport, Types, report
from tuner.base.errors import BadInput
from tuner.base.names import DataType
from tuner.base.nouns import TimeInterval
from tuner.base.view import Column, as_ms, as_percent, columns_of, decimals
from tuner.cli import options
from tuner.cli import times as calibrated_times
from tuner.cli.command import only
from tuner.cli.communicator_options import release_option
from tuner.cli.cost import values
from tuner.cli.output import print_view, say, shown_as_json
from tuner.times.costmodels import step
from tuner.times.costmodels.alphabeta import level
from tuner.times.costmodels.operations import not_negative, positive
from tuner.times.costmodels.step import Cluster, Model, Parallelism

OF_MODEL = (
    *("parameters", "layers", "hidden", "sequence"),
    *("expert_parameters", "expert_layers", "experts_per_token"),
)


RULES = (
    only(
        *("--communication-us", "communication_us", "compute_us", "overlapped"),
        when=lambda params: params["communication_us"] is not None,
    ),
)


@click.command(name="step", cls=options.Command, rules=RULES)
@options.under("Experts", "--expert-parameters", "--expert-layers", "--experts-per-token", "--ep")
@options.under("Types and bytes", "--dtype", "--gradient-dtype", "--activation-bytes", "--gradient-bytes", "--buckets")
@options.under(
    "Parallelism in detail", "--sp", "--zero", "--micro-batches", "--micro-batch-sequences", "--gpus-per-node"
)
@options.under("Alpha and beta", "--alpha-us", "--beta-gbs", "--inter-alpha-us", "--inter-beta-gbs")
@options.under("Output", "--time")
@options.under("Computation beside it", "--compute-us", "--overlap", "--communication-us")
@click.argument("name", required=False, metavar="[MODEL]")
@options.option(
    "--parameters", "Number of parameters of the whole model, such as 70B or 70e9.", type=values.Count(positive)
)
@options.option("--layers", "Number of layers of the model.", type=int)
@options.option("--hidden", "Hidden size of the model, in elements.", type=int)
@options.option("--sequence", "Number of tokens in a sequence.", type=int)
@options.option(
    "--dtype", "Data type of activations and parameters.", type=options.Named(DataType, "type"), default="float16"
)
@options.option("--gradient-dtype", "Data type of gradients. [default: --dtype]", type=options.Named(DataType, "type"))
@options.option(
    "--expert-parameters", "How many of the --parameters belong to experts.", type=values.Count(not_negative)
)
@options.option("--expert-layers", "Number of layers with experts.", type=int)
@options.option("--experts-per-token", "Number of experts that each token is sent to. [default: 1]", type=int)
@options.option("--tp", "Degree of tensor parallelism.", type=int, default=1)
@options.flag("--sp", "Use sequence parallelism with --tp: ReduceScatter and AllGather in place of AllReduce.")
@options.option("--dp", "Degree of data parallelism. [default: 1, or what fills --nodes]", type=int)
@options.option("--nodes", "Nodes that the job fills, instead of --dp.", type=int)
@options.option("--zero", "ZeRO's stage, 0 to 3.", type=click.IntRange(0, 3), default=0)
@options.option("--ep", "Degree of expert parallelism, a divisor of --dp.", type=int, default=1)
@options.option("--pp", "Pipeline stages.", type=int, default=1)
@options.option("--micro-batches", "Number of micro-batches of a step on each replica.", type=int, default=1)
@options.option("--micro-batch-sequences", "Its sequences.", type=values.POSITIVE, default=1.0)
@options.option("--buckets", "Number of calls (buckets) in which the gradients are sent.", type=int, default=1)
@options.option(
    "--activation-bytes",
    "Bytes of a micro-batch's activations between two layers. [default: sequences x sequence x hidden x type]",
    type=options.SIZES,
)
@options.option(
    "--gradient-bytes",
    "Bytes of gradients of one GPU. [default: parameters x type over --tp x --pp]",
    type=options.SIZES,
)
@options.option("--gpus-per-node", "GPUs per node. [default: those of the machine, or 8]", type=int)
@options.option("--alpha-us", "Latency of a step inside a node.", type=values.NOT_NEGATIVE, default=1.0)
@options.option("--beta-gbs", "Bandwidth of a GPU inside a node.", type=values.POSITIVE, default=300.0)
@options.option("--inter-alpha-us", "Latency between nodes.", type=values.NOT_NEGATIVE, default=5.0)
@options.option("--inter-beta-gbs", "Bandwidth of a GPU between nodes.", type=values.POSITIVE, default=50.0)
@options.option(
    "--model",
    "model_name",
    "Which model predicts the times; nccl shows NCCL's and alpha-beta's times, and the difference. [default: "
    "nccl with --machine, else alphabeta]",
    type=click.Choice(["alphabeta", "nccl"]),
)
@options.option("--machine", "With --model nccl: the machine, by its name.", metavar="NAME")
@release_option("With --model nccl: the NCCL release. [default: the newest that runs on the machine]")
@options.option("--compute-us", "How long the computation of a step takes, in us.", type=values.POSITIVE, metavar="US")
@options.option(
    "--overlap",
    "overlapped",
    "Share of the communication that runs at the same time as the computation. With --model nccl, the answer also says "
    "how many SMs the calls occupy. [default: 0; if --communication-us is given: 0,0.5,0.8,1]",
    type=values.PARTS,
)
@options.option(
    "--communication-us",
    "Instead of a model: the communication time of a step in us; shows how long the step takes at each share of "
    "--overlap.",
    type=values.POSITIVE,
    metavar="US",
)
@options.time_options("both")
@options.json_option
def step_command(
    name: str | None,
    dtype: DataType,
    gradient_dtype: DataType | None,
    tp: int,
    sp: bool,
    dp: int | None,
    nodes: int | None,
    pp: int,
    activation_bytes: list[int] | None,
    gradient_bytes: list[int] | None,
    gpus_per_node: int | None,
    alpha_us: float,
    beta_gbs: float,
    inter_alpha_us: float,
    inter_beta_gbs: float,
    model_name: str | None,
    machine: str | None,
    nccl: str | None,
    compute_us: float | None,
    overlapped: list[float] | None,
    communication_us: float | None,
    times: TimesWanted | None,
    **given: Any,
) -> None:
    """Lists the collectives of a training step by kind of parallelism, with their bytes, number of calls and time.

    MODEL is the name of a known model, such as llama-3-70b, mixtral-8x7b or deepseek-v3; options change its parameters,
    or describe another model.

    \b
    nccl-tuner cost step llama-3-70b --tp 8 --pp 4 --nodes 16 --model nccl --machine dgx-h100
    nccl-tuner cost step --parameters 70e9 --layers 80 --hidden 8192 --sequence 4096 --tp 8 --dp 8 --pp 8 \
        --micro-batches 8 --compute-us 1500000 --model nccl --machine dgx-h100 --nccl 2.28.9
    nccl-tuner cost step --communication-us 600000 --compute-us 2000000 --overlap 0,0.8,1
    """
    if communication_us is not None:
        if compute_us is None or name is not None:
            raise BadInput(
                "--communication-us replaces MODEL and needs --compute-us: add --compute-us and remove MODEL"
            )
        _show_overlap(compute_us, communication_us, overlapped or SHARES)
        return
    share, *more = overlapped or [0.0]
    if more:
        raise BadInput("--overlap takes several shares only with --communication-us; give one share")
    if model_name is not None and (model_name == "nccl") != (machine is not None):
        raise BadInput("--model nccl and --machine only apply together: give both or neither")
    if nccl is not None and machine is None:
        raise BadInput("--nccl only applies with --model nccl and --machine")
    if machine is None and times is not None and (times.calibration or not times.beside_nccl):
        raise BadInput(
            "--time and --calibration only apply with --model nccl and --machine, as calibrated times are those "
            "of a machine"
        )
    if share and compute_us is None:
        raise BadInput("--overlap only applies with --compute-us, the computation that hides the communication")
    scenario = options.CommunicatorOptions({"machine": machine, "nccl": nccl}).scenario() if machine else None
    counts = {"--tp": tp, "--pp": pp, "--nodes": nodes, "--gpus-per-node": gpus_per_node}
    for option, count in counts.items():
        if count is not None and count < 1:
            raise BadInput(f"{option} {count}; valid: 1 or more")
    if gpus_per_node is None:
        gpus_per_node = scenario.ranks if scenario else 8
    if nodes is not None:
        if dp is not None:
            raise BadInput("--nodes and --dp both say how many GPUs there are; give one of them")
        dp = _copies(nodes * gpus_per_node, tp, pp)
    cluster = Cluster(gpus_per_node, level(alpha_us, beta_gbs), level(inter_alpha_us, inter_beta_gbs))
    types = Types(dtype, gradient_dtype or dtype)
    model = Model(
        **step.model_fields(name, {each: given.pop(each) for each in OF_MODEL}),
        element_bytes=types.dtype.size_bytes,
        gradient_element_bytes=types.gradient_dtype.size_bytes,
    )
    plan = Parallelism(
        tp=tp,
        dp=1 if dp is None else dp,
        pp=pp,
        sequence_parallel=sp,
        **given,  # what is called as its option
        activation_bytes=activation_bytes and activation_bytes[0],
        gradient_bytes=gradient_bytes and gradient_bytes[0],
    )
    rows = training_step.rows(step.traffic(model, plan), cluster, types, scenario, times)
    answer = report(rows, plan, scenario.nccl if scenario else None, compute_us, share)
    if not shown_as_json(answer):
        _print(answer, f", NCCL on {scenario.name}, {scenario.nccl}" if scenario else "")
        _print_whose(answer, share)


def _copies(gpus: int, tp: int, pp: int) -> int:
    """Number of copies of the model that the GPUs hold, which is the degree of data parallelism."""
    if gpus % (tp * pp):
        raise BadInput(
            f"--tp {tp} x --pp {pp} = {tp * pp} GPUs of a copy of the model do not divide {gpus} GPUs; "
            "valid: a divisor of these"
        )
    return gpus // (tp * pp)


def _print_whose(answer: StepReport, overlapped: float) -> None:
    """Prints which calibration the times come from, and how many SMs the calls take away from computation."""
    if used := [row.calibration for row in answer.rows if row.calibration]:
        say(calibrated_times.whose_of_all(used))
    channels = [row.channels for row in answer.rows if row.channels is not None]
    if channels:
        say(calibrated_times.ALONE)
    if channels and overlapped:
        taken = f"{min(channels)} to {max(channels)}" if min(channels) < max(channels) else str(channels[0])
        say(
            f"a call takes {taken} SMs of each GPU away from computation, one per channel; "
            f"{calibrated_times.COST_UNKNOWN}"
        )


SHARES = (0.0, 0.5, 0.8, 1.0)


def _bounds(call: TimeInterval | None) -> str:
    return "-" if call is None else f"{call.low_us / 1000:.3f} to {call.high_us / 1000:.3f}"


PLACE = columns_of(StepCall, "parallelism", "operation")
SHAPE = Column("GPUs x nodes", lambda row: f"{row.gpus_per_node} x {row.nodes}", spare=4)
CALLS = columns_of(StepCall, "bytes", "calls", "alphabeta_call_us")
BY_NCCL = columns_of(StepCall, "nccl_call_us", "nccl_pick", "difference")
CALIBRATED = (
    Column("calibrated ms", attrgetter("calibrated_call"), lambda time: calibrated_times.central(time, 1e3, 3), 6),
    Column(f"{calibrated_times.INTERVAL} ms", attrgetter("calibrated_call"), _bounds, 3),
)
OF_STEP = columns_of(StepCall, "step_us", "share")


def _print(answer: StepReport, by: str) -> None:
    calibrated = CALIBRATED if by and answer.calibrated else ()
    columns = (*PLACE, SHAPE, *CALLS, *(BY_NCCL if by else ()), *calibrated, *OF_STEP)
    total = f"{answer.communication_us / 1000:.2f} ms of communication in a step of {answer.gpus} GPUs{by}"
    if by:
        total += f" (all by alpha-beta {answer.alphabeta_us / 1000:.2f} ms)"
    print_view(total, columns, answer.rows)
    if (time := answer.calibrated) is not None:
        low, high = f"{time.low_us / 1000:.2f}", f"{time.high_us / 1000:.2f}"
        say(
            f"by measurements {time.time_us / 1000:.2f} ms (90 %: {low} to {high}) for the calls for which NCCL has "
            "algorithms"
        )
    if (beside := answer.overlapped) is not None:
        shown = f", {100 * beside.overlap:g} % of it hidden" if beside.overlap else ""
        faster = f", {beside.speedup:.3f} times as fast as with nothing hidden" if beside.overlap else ""
        say(
            f"{100 * beside.of_compute:.1f} % of {beside.compute_us / 1000:g} ms of computation{shown}: "
            f"a step of {beside.step_us / 1000:.2f} ms{faster}"
        )


HIDDEN = (
    Column("hidden", itemgetter("hidden"), as_percent("g")),
    Column("step ms", itemgetter("step_us"), as_ms(".2f")),
    Column("speed-up", itemgetter("speedup"), decimals(3)),
    Column("of the most", itemgetter("of_most"), as_percent(".1f")),
)


def _show_overlap(compute_us: float, communication_us: float, hidden: Sequence[float]) -> None:
    """Prints the time of a step whose communication is partly hidden, and the speed-up compared with no overlap."""
    times = compute_us, communication_us
    records = [
        {
            "hidden": share,
            "step_us": float(step.step_us(*times, share)),
            "speedup": float(step.speedup(*times, share)),
            "of_most": float(step.achieved(*times, share)),
        }
        for share in hidden
    ]
    if not shown_as_json(records, "answers"):
        print_view("Communication behind computation", HIDDEN, records)
