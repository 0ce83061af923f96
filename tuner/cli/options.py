"""Options that several verbs share, and the parsers of their values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.answers.changes import KEYS, changed
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.base.sizes import size_bytes as size_bytes
from tuner.base.sizes import size_list
from tuner.cli.buffer_options import buffers_option as buffers_option
from tuner.cli.buffer_options import in_place_option as in_place_option
from tuner.cli.buffer_options import window_options as window_options
from tuner.cli.log_facts import described_by_log, say_log
from tuner.cli.named import AnyCall as AnyCall
from tuner.cli.named import Named as Named
from tuner.cli.rank_options import part_options
from tuner.cli.release_names import ReleaseName
from tuner.cli.renamed import Change, Renamed
from tuner.cli.stacked import F, stacked
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.machine.topology.edit import EDITS
from tuner.release import BUILDS
from tuner.release.environment import parse_assignments
from tuner.scenario import MOST_NODES, Scenario, notes
from tuner.scenario.describe import describe, names_of_nodes

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted


class Sizes(click.ParamType):  # type: ignore[type-arg]
    """A comma-separated list of sizes, and of ranges of them."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        return value if isinstance(value, list) else size_list(str(value))


def out_option(metavar: str, says: str, former: str | None = None, required: bool = True) -> Callable[[F], F]:
    """The file to write, as the parameter ``out``: ``-o`` and ``--out``, and its ``former`` name with a note."""
    attributes: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": metavar, "help": says}
    if former is not None:
        attributes |= {"cls": Renamed, "former": former}
    return click.option("-o", "--out", "out", required=required, **attributes)


def hidden(*names: str) -> Callable[[F], F]:
    """Help does not show these options below: the command always refuses them, and says what is valid."""

    def decorated(function: F) -> F:
        for parameter in getattr(function, "__click_params__", ()):
            if isinstance(parameter, click.Option) and parameter.opts[0] in names:
                parameter.hidden = True
        return function

    return decorated


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """A comma-separated list of whole numbers."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            return [int(word) for word in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r}: expected whole numbers with commas between them, such as 18 or 8,4", param, ctx)


def skeleton_options(function: F) -> F:
    """The options that say what a topology leaves to the machine."""
    return stacked(
        function,
        click.option(
            "--gpu",
            metavar="MODEL",
            help="The GPU model of a topology that only places its GPUs, such as h100-sxm.",
        ),
        click.option(
            "--net-gbps",
            type=click.FloatRange(min=0.001, max=1e6),
            metavar="GBPS",
            help="Speed of adapters that the topology only places, 1e9 bits per second; with --gpu.",
        ),
        click.option(
            "--net-latency-us",
            type=click.FloatRange(min=0, max=1e6),
            metavar="US",
            help="Latency that the network plugin reports for these adapters. [default: 0, as NCCL's own]",
        ),
    )


def scenario_options(function: F, several_releases: bool = False) -> F:
    """The options that describe a communicator, or one for each of several releases."""
    function = part_options(described_by_log(skeleton_options(function)))
    return stacked(
        function,
        click.option(
            "--machine",
            metavar="NAME",
            shell_complete=lambda _ctx, _option, begun: [name for name in catalogue.names() if name.startswith(begun)],
            help="A machine by name (see: nccl-tuner machines), or a cloud's instance type such as p5.48xlarge.",
        ),
        click.option(
            "--topology",
            type=click.Path(path_type=Path),
            metavar="FILE.xml",
            help="A topology in NCCL's XML format.",
        ),
        click.option(
            "--graphs",
            type=click.Path(path_type=Path),
            metavar="FILE.xml",
            help="Graphs that NCCL dumped (NCCL_GRAPH_DUMP_FILE), for the machine or topology.",
        ),
        click.option("--nodes", type=int, help="Number of nodes. [default: 1, or as in the log]"),
        click.option("--gpus-per-node", type=int, help="GPUs used of each node. [default: all]"),
        click.option(
            "--trays", type=int, help="Trays used of each node, of a machine that is a NVLink domain. [default: all]"
        ),
        click.option("--gpus-per-tray", type=int, help="GPUs used of each tray. [default: all]"),
        click.option(
            "--hosts-per-domain",
            type=Numbers(),
            metavar="K[,K...]",
            help="Hosts of each NVLink domain (multi-node NVLink, one node to NCCL): of all alike, or one by one.",
        ),
        click.option(
            "--ranks-without-fabric",
            type=Numbers(),
            metavar="RANK[,RANK...]",
            help="Ranks whose GPUs have not joined the NVLink fabric of their domain, without which NCCL uses none.",
        ),
        click.option(
            "--ranks-per-gpu",
            type=click.IntRange(min=1),
            help="Ranks on each GPU, which NCCL 2.30.3 and later allow. [default: 1, or as in FILE.xml]",
        ),
        click.option(
            "--gpus-per-process",
            type=click.IntRange(min=1),
            help="GPUs of each process, such as nccl-tests' -g; NVLS then takes no registered buffers. [default: 1]",
        ),
        click.option(
            "--node",
            multiple=True,
            metavar="NODE[:GPUS][xN]",
            help="Where nodes differ, instead of the options above: a machine or a FILE.xml, the GPUs used of it, "
            "the number of such nodes; repeatable, in the order of ranks: dgx-h100x2, dgx-a100:4.",
        ),
        click.option(
            "--nccl",
            type=ReleaseName(),
            metavar="RELEASE",
            multiple=several_releases,
            help="A NCCL release; repeatable. [default: all that run on the machine]"
            if several_releases
            else "NCCL release. [default: the newest that runs on the machine]",
        ),
        click.option(
            "--env",
            multiple=True,
            metavar="NAME=VALUE",
            help="A NCCL variable; repeatable. NCCL_COLLNET_ENABLE=1 also says that the network reduces.",
        ),
        click.option(
            "--constants",
            cls=Renamed,
            former="--layer",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Fitted constants ('nccl-tuner fit') instead of NCCL's own; not for libnccl.",
        ),
    )


def request_options(function: F) -> F:
    """The options that describe a call besides the collective and its sizes."""
    return stacked(
        function,
        click.option(
            "--dtype",
            type=Named(DataType, "type"),
            default="float32",
            show_default=True,
            help="Data type, NCCL's name.",
        ),
        click.option(
            "--op", type=Named(Op, "operation"), default="sum", show_default=True, help="Reduction operation."
        ),
    )


def time_options(default: str) -> Callable[[F], F]:
    """Whose times are shown, as one parameter ``times``: None where they are NCCL's alone."""

    def decorated(function: F) -> F:
        @wraps(function)
        def timed(*given: Any, time: str | None, calibration: str | None, **others: Any) -> Any:
            whose = time or (default if calibration is None else "calibrated")
            return function(*given, times=_times_wanted(whose, calibration), **others)

        for option in (
            click.option(
                "--calibration",
                metavar="NAME|FILE",
                help="Calibrated times by this calibration; implies --time calibrated. [default: that of the machine, "
                "else of another with GPUs of its generation]",
            ),
            click.option(
                "--time",
                type=click.Choice(("nccl", "calibrated", "both")),
                help="Whose times: NCCL's own prediction, calibrated ones with 90 % intervals ('both' says why where "
                f"there are none), or both; picks are NCCL's in any case. [default: {default}]",
            ),
        ):
            timed = option(timed)
        return timed  # type: ignore[return-value]

    return decorated


def _times_wanted(whose: str, calibration: str | None) -> "TimesWanted | None":
    if whose == "nccl":
        if calibration is not None:
            raise BadInput(f"--calibration {calibration} with --time nccl; valid with it: --time calibrated, both")
        return None
    from tuner.answers.calibrated import TimesWanted  # plain answers do without it

    return TimesWanted(whose == "both", calibration)


any_call_argument = click.argument("collective", type=AnyCall(Collective, "collective"))
collective_argument = click.argument("collective", type=Named(Collective, "collective"))
collectives_argument = click.argument(
    "collectives", nargs=-1, type=Named(Collective, "collective"), metavar="[COLLECTIVE]..."
)
bytes_option = click.option(
    "--bytes",
    "sizes",
    type=Sizes(),
    default="8,1K,32K,256K,1M,4M,16M,64M,256M,1G",
    show_default=True,
    help="NCCL's nBytes: count x type size, times the ranks for AllGather and ReduceScatter; 64K is 65536; 8..1G*2 as "
    "nccl-tests' -b 8 -e 1G -f 2.",
)
change_option = click.option(
    "--change",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    type=Change(),
    help=f"What is different afterwards: {', '.join(KEYS)}, or a NCCL variable; repeatable.",
)
of_nodes_option = click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    type=Change(),
    help=f"What is different of the nodes, such as remove-nic=mlx5_0: {', '.join(EDITS)}, p2p; repeatable.",
)
build_option = click.option(
    "--build",
    type=click.Choice(BUILDS),
    default=BUILDS[0],
    show_default=True,
    help="Which libnccl of the release: for CUDA 12 or CUDA 13.",
)
timeout_option = click.option(
    "--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="Seconds a libnccl answer may take."
)
csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, for a spreadsheet.")
launch_option = click.option(
    "--launch",
    "in_full",
    is_flag=True,
    help="Besides what each block and proxy is handed: elements, chunks, steps, kernels, rings and trees.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def range_options(function: F) -> F:
    """The sizes that ranges are looked for in."""
    return stacked(
        function,
        click.option("--from", "low", type=size_bytes, metavar="SIZE", help="The least size. [default: one element]"),
        click.option(
            "--to",
            "high",
            type=size_bytes,
            metavar="SIZE",
            default="1T",
            show_default=True,
            help="The greatest size; NCCL's nBytes, as in pick.",
        ),
    )


def runnable(
    selections: Mapping[str, Selection], collectives: Sequence[Collective], like: Request, everywhere: bool = True
) -> list[Request]:
    """The calls of these collectives; without any, of all that can run, the others named on stderr.

    They are ``like`` that call in all but the collective. ``selections`` are by the words that say which; a call has to
    run in all of them, or in one if not ``everywhere``.
    """
    requests = [replace(like, collective=collective) for collective in dict.fromkeys(collectives or Collective)]
    if collectives:
        return requests
    refused = {request: [of for of, one in selections.items() if not one.usable(request)] for request in requests}
    most = 0 if everywhere else max(len(selections) - 1, 0)
    left = [request for request in requests if len(refused[request]) <= most]
    if not left:
        for selection in selections.values():
            selection.pick(requests[-1], requests[-1].dtype.size_bytes)  # which says why
    for request in requests:
        if request not in left:
            click.echo(f"{request.collective.name}: nothing can run it {' and '.join(refused[request])}", err=True)
    return left


def say_whose_parts(names: Iterable[str]) -> None:
    """A line on stderr, once a command, for each name that is another name of a machine: whose parts, and why."""
    _say_once(alias.note for alias in filter(None, map(catalogue.alias, names)))


def say_notes(scenario: Scenario) -> None:
    """A line on stderr, once a command, for each variable that NCCL does not take as it stands there."""
    _say_once(notes.of_scenario(scenario))


def after(before: Scenario, assignments: Sequence[str]) -> Scenario:
    """The scenario after each KEY=VALUE, in order, with :func:`say_notes`. Errors: those of :func:`changed`."""
    scenario = changed(before, assignments)
    say_notes(scenario)
    return scenario


def _say_once(lines: Iterable[str]) -> None:
    said = click.get_current_context().meta.setdefault("tuner.cli.notes", set())
    for line in dict.fromkeys(lines):
        if line not in said:
            said.add(line)
            click.echo(f"note: {line}", err=True)


def scenario_of(**given: Any) -> Scenario:
    """The scenario that :func:`scenario_options` describe, by their parameters."""
    nodes, node = given.get("nodes"), given.get("node") or ()
    if nodes is not None and not 1 <= nodes <= MOST_NODES:
        raise BadInput(f"--nodes {nodes}: valid: 1 to {MOST_NODES}")
    names = "machine", "topology", "graphs", "gpu", "gpus_per_node", "trays", "gpus_per_tray"
    alike = [given.get(name) for name in names]
    if node and ((nodes or 1) > 1 or any(value is not None for value in alike)):
        those = "--machine, --topology, --graphs, --gpu, --nodes, --gpus-per-node"
        raise BadInput(f"--node describes all nodes; valid: --node alone, or {those}")
    words = {name: value for name, value in given.items() if name != "changes"}
    scenario = describe(**{**words, "env": parse_assignments(given.get("env", ()))})
    say_log(scenario)
    say_whose_parts([given["machine"]] if given.get("machine") else names_of_nodes(node))
    return after(scenario, given.get("changes", ()))
