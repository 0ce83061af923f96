"""``nccl-tuner cost allreduce`` and the other operations: a time by the alpha-beta model."""

from itertools import product
from typing import Any

import click

from tuner.cli import options
from tuner.cli.cost import values
from tuner.cli.output import print_table
from tuner.costmodels import algorithms, verdict
from tuner.costmodels.operations import Operation
from tuner.costmodels.overheads import USUAL, overheads


def command_of(operation: Operation) -> click.Command:
    """The command of an operation; all are alike but for their algorithms."""
    name, names = operation.name.lower(), algorithms.names(operation)
    first = names[0]

    @click.command(name=name, short_help=f"{operation.name} by alpha and beta", help=_help(operation, name, first))
    @click.option("--algorithm", type=click.Choice(names), default=first, show_default=True)
    @values.ranks_option
    @values.sizes_option
    @values.level_options
    @click.option(
        "--overhead-us",
        type=values.NOT_NEGATIVE,
        default=0.0,
        metavar="US",
        help="LogP's o of a processor: the alphas are then LogP's latency L, and a step takes L + 2 o.",
    )
    @click.option(
        "--gap-us", type=values.NOT_NEGATIVE, default=0.0, metavar="US", help="LogP's g, the least time of a step."
    )
    @click.option(
        "--software-us",
        type=values.NOT_NEGATIVE,
        default=0.0,
        metavar="US",
        help=f"Library, driver and launch of a call; {_usual('software')}.",
    )
    @click.option(
        "--protocol",
        type=values.SHARE,
        default=0.0,
        metavar="SHARE",
        help=f"Of the bandwidth, for headers and repeats; {_usual('protocol')}.",
    )
    @click.option(
        "--contention",
        type=values.SHARE,
        default=0.0,
        metavar="SHARE",
        help=f"Of the bandwidth, taken by others; {_usual('contention')} in shared clusters.",
    )
    @click.option(
        "--copy-gbs", type=values.POSITIVE, metavar="GBS", help="Bandwidth of a copy of the whole size, such as PCIe."
    )
    @click.option(
        "--straggler",
        type=values.NOT_NEGATIVE,
        default=0.0,
        metavar="SHARE",
        help=f"How much longer the slowest rank takes; {_usual('straggler')}.",
    )
    @click.option("--measured-us", type=values.POSITIVE, metavar="US", help="A measured time, for the model's error.")
    @options.json_option
    def command(
        algorithm: str, ranks: list[int], sizes: list[int], as_json: bool, measured_us: float | None, **given: Any
    ) -> None:
        found = [
            _record(operation, algorithm, count, size, measured_us, **given) for count, size in product(ranks, sizes)
        ]
        if as_json:
            values.print_records(found)
        else:
            _print(operation, found)

    return command


def _usual(factor: str) -> str:
    least, most = USUAL[factor]
    return f"{least:g} to {most:g} are usual"


def _help(operation: Operation, name: str, first: str) -> str:
    return f"""Time of {operation.name} by the alpha-beta model: steps of alpha, and a share of the size over beta.

    \b
    nccl-tuner cost {name} --algorithm {first} --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    """


def _record(
    operation: Operation,
    algorithm: str,
    ranks: int,
    size: int,
    measured_us: float | None,
    alpha_us: float | None,
    beta_gbs: float | None,
    inter_alpha_us: float | None,
    inter_beta_gbs: float | None,
    gpus_per_node: int | None,
    overhead_us: float,
    gap_us: float,
    **factors: Any,
) -> dict[str, Any]:
    levels = values.levels(alpha_us, beta_gbs, inter_alpha_us, inter_beta_gbs, gpus_per_node, overhead_us, gap_us)
    gpus, nodes = values.shape(ranks, gpus_per_node)
    made = algorithms.predict(operation, algorithm, size, algorithms.System(gpus, nodes, levels), overheads(**factors))
    found = {
        "operation": operation.name,
        "algorithm": algorithm,
        "ranks": ranks,
        "gpus_per_node": gpus,
        "nodes": nodes,
        "bytes": size,
        "time_us": float(made.time_us),
        "latency_us": float(made.latency_us),
        "busbw_gbs": float(made.busbw_gbs),
        "parts_us": values.floats(made.parts_us),
    }
    if made.flat_us is not None:
        found |= {"phases_us": values.floats(made.phases_us), "flat_us": float(made.flat_us)}
    if measured_us is not None:
        error = verdict.error(float(made.time_us), measured_us)
        found |= {"measured_us": measured_us, "error": error, **_class(verdict.of_error(error))}
    return found


def _class(found: verdict.Class) -> dict[str, Any]:
    return {"class": found.name, "causes": list(found.causes)}


def _print(operation: Operation, records: list[dict[str, Any]]) -> None:
    rows = [
        (
            record["algorithm"],
            record["ranks"],
            values.named_bytes(record["bytes"]),
            f"{record['time_us']:.2f}",
            f"{record['latency_us']:.2f}",
            f"{record['busbw_gbs']:.3f}",
        )
        for record in records
    ]
    columns = ("algorithm", "ranks", "size", "time us", "latency us", "busbw GB/s")
    print_table(f"{operation.name} by alpha and beta", columns, rows)
    for record in records:
        if parts := _parts(record):
            click.echo(f"{values.named_bytes(record['bytes'])}: {parts}")
        if "error" in record:
            error = f"{100 * record['error']:+.1f} %"
            click.echo(f"measured {record['measured_us']:g} us: the model is off by {error}: {record['class']}")
            for cause in record["causes"]:
                click.echo(f"  look for {cause}")


def _parts(record: dict[str, Any]) -> str:
    """The phases, and what overheads add to the model."""
    added = {f"{name} +{us:.2f}": us for name, us in record["parts_us"].items() if name != "model" and us}
    parts = [f"{name} {us:.2f}" for name, us in record.get("phases_us", {}).items()]
    if "flat_us" in record:
        longer = record["flat_us"] / record["parts_us"]["model"]
        parts.append(f"flat {record['flat_us']:.2f} ({longer:.2f} times as long)")
    return ", ".join([*parts, *added])
