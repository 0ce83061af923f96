"""``nccl-tuner check libnccl``: the emulator against the real library."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import click

from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.cli import options
from tuner.cli.output import print_json, print_table
from tuner.machine import catalogue
from tuner.oracle.conformance.check import KINDS, check
from tuner.oracle.conformance.mismatches import MatchReport
from tuner.scenario import Scenario


@click.command(name="libnccl", cls=options.Command)
@options.collectives_argument
@options.communicator_options(changes=True, build=True)
@options.call_options()
@click.option("--bytes", "sizes", type=options.Sizes(), help="Sizes. [default: over 60 from 4 B to 16 GiB]")
@options.timeout_option
@options.json_option
def command(
    collectives: tuple[Collective, ...],
    call: options.CallOptions,
    sizes: list[int] | None,
    timeout_s: float,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """Compares COLLECTIVES (default: all five) with libnccl, exactly. Exit code 1 if anything differs.

    Without --machine, --topology and --node: every known machine; without --nodes: 1, 2 and 4 nodes,
    and where a node has one GPU, 2 and 4.

    \b
    nccl-tuner check libnccl --nccl 2.28.9
    nccl-tuner check libnccl allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner check libnccl --node dgx-h100 --node dgx-a100:4 --nccl 2.28.9
    nccl-tuner check libnccl --machine dgx-h100 --gpus-per-node 1 --ranks-per-gpu 2 --nccl 2.32.3
    """
    given = click.get_current_context().get_parameter_source("nodes")
    nodes_given = given is click.core.ParameterSource.COMMANDLINE
    like = call.request()
    requests = [replace(like, collective=collective) for collective in collectives or Collective]
    reports: list[MatchReport] = []
    try:
        for scenario in _scenarios(nodes_given, communicator):
            if not as_json:
                click.echo(f"{scenario.title} ...", err=True)
            reports.append(check(scenario, requests, sizes, timeout_s))
    finally:  # what was compared before one failed is not lost
        if reports:
            (print_json if as_json else _print)(reports)
    sys.exit(1 if any(report.mismatches for report in reports) else 0)


def _scenarios(nodes_given: bool, given: options.CommunicatorOptions) -> Iterator[Scenario]:
    if given["node"] or given["log"]:
        yield given.scenario()
        return
    everywhere = given["machine"] is None and given["topology"] is None
    names = catalogue.names() if everywhere else [given["machine"]]
    if everywhere and given["graphs"] is not None:
        raise BadInput("--topo-graphs needs the machine it belongs to; valid: --machine NAME, --topology FILE.xml")
    for name in names:
        scenario = given.scenario(machine=name)
        if nodes_given:
            yield scenario
        else:  # one rank has nothing to pick
            yield from (each for nodes in (1, 2, 4) if (each := scenario.with_nodes(nodes)).ranks > 1)


def _print(reports: list[MatchReport]) -> None:
    rows = [(report.title, *(_share(report, kind) for kind in KINDS)) for report in reports]
    totals = Counter[str]()
    matched = Counter[str]()
    for report in reports:
        totals.update(report.compared)
        matched.update(report.matched)
    rows.append(("all", *(f"{matched[kind]}/{totals[kind]}" for kind in KINDS)))
    print_table("matched / compared with libnccl", ("communicator", *KINDS), rows)
    for report in reports:
        for mismatch in report.mismatches:
            click.echo(
                f"MISMATCH {report.title}: {mismatch.what} {mismatch.where}: "
                f"emulator {mismatch.emulator}, libnccl {mismatch.libnccl}"
            )


def _share(report: MatchReport, kind: str) -> str:
    return f"{report.matched.get(kind, 0)}/{report.compared.get(kind, 0)}"
