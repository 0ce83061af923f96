"""``nccl-tuner log``: what a NCCL log says about a communicator, and whether the emulator agrees."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput, CannotBeJudged
from tuner.base.findings import Severity, words
from tuner.base.names import Protocol
from tuner.base.records import to_json
from tuner.base.sizes import plural
from tuner.cli import options
from tuner.cli.command import FILE, option, stacked
from tuner.cli.communicator_options import fact_options, release_option
from tuner.cli.output import human_bytes, json_wanted, print_json, print_table, say, show
from tuner.emulator.request import Request
from tuner.machine import graphs, topology
from tuner.release.environment import parse_assignments
from tuner.scenario.logs import importer
from tuner.scenario.logs.imported import Imported, LogAdditions, LoggedChoice


def _topology(path: Path | None) -> topology.Topology | None:
    return None if path is None else topology.read(path)


def _graphs(path: Path | None) -> graphs.Graphs | None:
    return None if path is None else graphs.read_dump(path)[0]


@click.command(name="log", cls=options.Command)
@options.under(
    "Rarely needed: what most logs say",
    "--cpu-arch",
    "--cpu-vendor",
    "--nvswitch",
    "--nic-latency-us",
    "--slowest-path-gbs",
)
@click.argument("file", type=FILE)
@options.flag("--check", "checked", "Compare the emulator with everything that the run printed.")
@options.option("--communicator", "The communicator, by its commId in the log. [default: the largest]", metavar="ID")
@release_option("NCCL release, instead of the one in the log's line 'NCCL version'.", only_known=False)
@options.option("--nodes", "Number of nodes.", type=click.IntRange(1))
@lambda function: stacked(function, *fact_options(option, heading=None))
@options.option(
    "--nic-latency-us",
    "net_latency_us",
    "Latency that the network plugin reports.",
    type=click.FloatRange(0, 1e6),
    metavar="US",
)
@options.file_option(
    "--topology",
    "FILE.xml",
    "A topology that a node dumped (NCCL_TOPO_DUMP_FILE); says compute capability, CPU and NVSwitches.",
)
@options.file_option(
    "--topo-graphs",
    "graphs",
    "FILE.xml",
    "Graphs that a node dumped (NCCL_GRAPH_DUMP_FILE), instead of those in the log.",
)
@options.option("--env", "A NCCL variable that the log does not show.", multiple=True, metavar="NAME=VALUE")
@options.collective_option("The collective of the logged choices, in logs that do not name it (2.20 to 2.22).")
@options.call_options(buffers=False, in_place=False, windows=False)
@options.json_option
def command(
    file: Path,
    checked: bool,
    call: Request,
    topology: Path | None,
    graphs: Path | None,
    nccl: str | None,
    comp_cap: tuple[int, ...],
    env: tuple[str, ...],
    **given: Any,
) -> None:
    """Reads FILE, a log of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,ENV, of any release and all ranks.

    Prints the communicator, its tables and its choices, and names what the log does not say. --json prints everything.
    With --check it says whether the emulator agrees: it compares every cell of the tuning table, threads, thread
    thresholds, channels and choices with the text that NCCL printed. --dtype and --op apply to calls for which the log
    does not say them (with NCCL_DEBUG_SUBSYS=COLL it does). Exit code 1 if anything differs, 3 if nothing can be
    compared.

    \b
    nccl-tuner log nccl.log
    nccl-tuner log nccl.log --communicator 0x54fe282d32a87d85 --json
    nccl-tuner log nccl.log --check --comp-cap 8.0
    """
    imported = importer.read(
        file,
        LogAdditions(
            release=nccl,
            comp_caps=comp_cap,
            environment=parse_assignments(env),
            topology=_topology(topology),
            graphs=_graphs(graphs),
            **given,
        ),
    )
    if checked:
        _check(imported, call)
        return
    if call != options.PLAIN:
        raise BadInput("--dtype and --op only apply with --check")
    if json_wanted():
        print_json(_record(imported))
    else:
        _print(imported)


def _check(imported: Imported, call: Request) -> None:
    from tuner.cli.check import print_log
    from tuner.oracle.conformance.check_log import compare

    compared = compare(imported, call.dtype, call.op)
    if not compared.report.compared:
        raise CannotBeJudged(f"nothing to compare: {'; '.join(compared.missing + compared.not_compared)}")
    show(compared, print_log)
    sys.exit(1 if compared.report.mismatches else 0)


def _print(imported: Imported) -> None:
    for found in sorted(imported.evidence.findings, key=lambda each: list(Severity).index(each.severity)):
        if not found.code.startswith("diagnose.ends_"):  # where the log ends is of whole jobs
            say(f"{'log' if found.severity is not Severity.NOTE else 'log, as expected'}: {words(found)}")
    nccl = imported.release or "of an unknown release"
    if imported.communicator is None and not imported.ranks:
        of = f"NCCL {nccl}: " if imported.release else ""
        say(f"{of}{'; '.join(reversed(imported.needed))}; 'nccl-tuner diagnose' reads other kinds of files")
        return
    say(
        f"NCCL {nccl}{'' if imported.emulated else ' (not emulated)'}: {_counted(imported.ranks, 'rank')}"
        f" on {_counted(imported.node_count, 'node')}, communicator {imported.communicator or '?'}"
    )
    if len(imported.communicators) > 1:
        say("communicators: " + ", ".join(f"{name} ({ranks} ranks)" for name, ranks in imported.communicators))
    counts = imported.coll_channels, imported.nvls_channels
    known = "channels: {} coll, {} nvls".format(*(each or "?" for each in counts))
    say("channels: not printed" if counts == (None, None) else known)
    if imported.environment:
        say("variables: " + " ".join(f"{name}={value}" for name, value in imported.environment.items()))
    _print_nodes(imported)
    cells = sum(len(row) for block in imported.table for row in block.rows.values())
    if cells:
        say(f"tuning table: {cells} cells; --json prints them\n")
    if imported.choices:
        print_table("Choices", CHOICE_COLUMNS, [_choice_row(made) for made in imported.choices])
    for what, texts in (
        ("note", imported.notes),
        ("not printed", imported.missing),
        ("needed", imported.needed),
    ):
        for text in texts:
            say(f"{what}: {text}")


NODE_COLUMNS = (
    "ranks",
    "local ranks",
    "compute capability",
    "CPU",
    "NVSwitch",
    "graph",
    "pattern",
    "channels",
    "intra GB/s",
    "inter GB/s",
    "types",
)


def _counted(number: int | None, what: str) -> str:
    return f"? {what}s" if not number else plural(number, what)


def _print_nodes(imported: Imported) -> None:
    rows: list[tuple[object, ...]] = []
    alike = Counter(map(repr, imported.nodes))  # those that the log does not show, and takes for another
    for node in {repr(each): each for each in imported.nodes}.values():
        unseen = f"{alike[repr(node)]} not shown" if alike[repr(node)] > 1 else "not shown"
        facts: tuple[object, ...] = (
            ",".join(map(str, node.ranks)) or unseen,
            node.local_ranks or "?",
            ",".join(sorted({f"{cap / 10:.1f}" for cap in node.comp_caps or ()})) or "?",
            f"{node.cpu_vendor or ''} {node.cpu_arch or '?'}".strip(),
            {None: "?", True: "yes", False: "no"}[node.nvswitch],
        )
        for name, graph in (node.graphs or {}).items():
            rows.append(
                (
                    *facts,
                    name,
                    graph.pattern.name if graph.pattern else "?",
                    graph.channels,
                    f"{graph.bw_intra_gbs:g}",
                    f"{graph.bw_inter_gbs:g}",
                    f"{graph.type_intra}/{graph.type_inter}",
                )
            )
            facts = ("",) * len(facts)
        if not node.graphs:
            rows.append((*facts, "?", "", "", "", "", ""))
    if rows:
        print_table("Nodes", NODE_COLUMNS, rows)


CHOICE_COLUMNS = ("collective", "size", "algorithm", "protocol", "channels", "time us", "type", "op", "times")


def _choice_row(made: LoggedChoice) -> tuple[object, ...]:
    return (
        made.collective.name if made.collective is not None else "?",
        human_bytes(made.bytes) if made.bytes is not None else "?",
        made.algorithm,
        made.protocol,
        "-" if made.channel_hi is None else f"{made.channel_lo}..{made.channel_hi}",
        made.time_us or "-",
        made.dtype.name if made.dtype is not None else "?",
        made.op.name if made.op is not None else "?",
        made.count,
    )


def _record(imported: Imported) -> dict[str, object]:
    names = (
        "release",
        "emulated",
        "communicator",
        "ranks",
        "node_count",
        "environment",
        "net_gbs",
        "thresholds",
        "coll_channels",
        "nvls_channels",
        "symmetric",
        "needed",
        "missing",
        "notes",
        "evidence",
    )
    return {
        **{name: to_json(getattr(imported, name)) for name in names},
        "communicators": [{"name": name, "ranks": ranks} for name, ranks in imported.communicators],
        "nodes": [{**to_json(node), "graphs": to_json(node.graphs) or None} for node in imported.nodes],
        "table": list(_cells(imported)),
        "max_threads": list(_threads(imported)),
        "choices": to_json(imported.choices),
    }


def _cells(imported: Imported) -> Any:
    """The cells of the table, as printed texts."""
    for index, block in enumerate(imported.table):
        columns = [(name, protocol.name) for name in block.names(index) for protocol in Protocol]
        for collective, row in block.rows.items():
            for (algorithm, protocol), (latency, bandwidth) in zip(columns, row, strict=False):
                yield {
                    "collective": collective.name,
                    "algorithm": algorithm,
                    "protocol": protocol,
                    "latency_us": latency,
                    "bandwidth_gbs": bandwidth,
                }


def _threads(imported: Imported) -> Any:
    for index, block in enumerate(imported.table):
        columns = [(name, protocol.name) for name in block.names(index) for protocol in Protocol]
        for (algorithm, protocol), text in zip(columns, block.threads, strict=False):
            yield {"algorithm": algorithm, "protocol": protocol, "max_threads": text}
