"""``nccl-tuner plot``: draws pictures of choices, times and machines."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from tuner.answers.choices import Choices, changed, choices, curves, ratio
from tuner.base.errors import BadInput, BadMeasurement, one_of
from tuner.base.files import write_text
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import SizeArray, shortest
from tuner.base.printable import printable, raw
from tuner.base.records import to_json
from tuner.base.sizes import plural
from tuner.cli import options
from tuner.cli.command import Params, excludes, missing_of
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.measured_options import arm_option, runs_there
from tuner.cli.output import json_wanted, note_after, print_json, say
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import MOST_NODES, Scenario
from tuner.times.measured import header
from tuner.times.measured.checks import nearest_release
from tuner.times.measured.formats import MeasurementFile, read_any
from tuner.times.measured.samples import Measurements, Point
from tuner.times.regret.arms import of_communicator
from tuner.times.timemodel import left_out
from tuner.times.verify import EmulatedModel, JudgedFile, Series, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tuner.answers.calibrated import TimesWanted
    from tuner.answers.charts.figures import RegretMark


MOST_ROWS = 1024


def sizes_of(from_bytes: int, to_bytes: int, points: int) -> SizeArray:
    if from_bytes >= to_bytes:
        raise BadInput(f"--from {from_bytes} --to {to_bytes}: valid: --from below --to")
    return np.unique(np.geomspace(from_bytes, to_bytes, points).round().astype(np.uint64))


def bar_of_nodes(nodes: Sequence[int]) -> Any:
    """A progress bar for this number of node counts, shown if stderr is a terminal."""
    hidden = not sys.stderr.isatty()
    return click.progressbar(length=len(nodes), label="numbers of nodes", file=raw(sys.stderr), hidden=hidden)


def nodes_of(scenario: Scenario, to_nodes: int | None, nodes_list: str | None) -> list[int]:
    """The numbers of nodes in ascending order. BadInput for invalid numbers, and if the scenario already says how many
    nodes there are.
    """
    if scenario.others or (scenario.nodes != 1 and scenario.from_log is None):
        raise BadInput(
            "--nodes and --node do not apply, as the picture is drawn over node counts: use --to-nodes N or "
            "--nodes-list N,N,..."
        )
    if nodes_list is None:
        most = to_nodes or 64
        fewest = max(scenario.node_counts[0], 1 if scenario.local_ranks() > 1 else 2)  # one rank has nothing to choose
        most = min(most, scenario.node_counts[1])
        return list(range(min(most, fewest), most + 1))
    words = nodes_list.split(",")
    if to_nodes is not None or len(words) > MOST_ROWS or not all(map(_is_count, words)):
        raise BadInput(
            f"--nodes-list {nodes_list}: expected up to {MOST_ROWS} numbers from 1 to {MOST_NODES}, without --to-nodes"
        )
    return sorted(set(map(int, words)))


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and 1 <= int(word) <= MOST_NODES


def nodes_alike(scenario: Scenario) -> str:
    """Text with machine, release and settings, without the number of nodes."""
    resolved, gpus = scenario.resolve(), scenario.gpus()
    each = f"{gpus} GPU{'s' * (gpus > 1)} per node{resolved.own.sharing}{resolved.each_in_words}"
    constants = [f"constants {scenario.fitted_constants.file}"] if scenario.fitted_constants else []
    return ", ".join([scenario.name, each, f"NCCL {scenario.nccl}", *constants, *scenario.settings])


def deliver(out: Path | None, record: Callable[[], Any], draw: Callable[[], "Figure"], says: Callable[[], str]) -> None:
    """Writes the picture, and prints the record as JSON, or one line that ``says`` what it shows."""
    _wanted(out, "FILE.png (.svg, .pdf)")
    if out is not None:
        from tuner.answers.charts import save

        save(draw(), out)
    if json_wanted():
        print_json(record())
    else:
        say(f"{out}: {says()}")


def _wanted(out: Path | None, files: str) -> None:
    """Raises BadInput if the user asks for neither a picture nor JSON."""
    if out is None and not json_wanted():
        raise BadInput(
            f"nothing to write: add --out {files} for a picture, or --json for the numbers that it would show"
        )


def _of_call(request: Request) -> dict[str, object]:
    """The call of a picture, without its sizes, for JSON."""
    return {"collective": request.collective, "dtype": request.dtype, "op": request.op, "buffers": request.buffers}


def _of_machine(scenario: Scenario) -> dict[str, object]:
    """The machine of a picture, without the number of nodes, for JSON."""
    own = {"machine": scenario.name, "gpus_per_node": scenario.gpus(), "environment": scenario.environment or {}}
    return {**to_json(scenario.constants), **own}


def _of_picks(picks: Choices, row: int | slice = slice(None)) -> dict[str, object]:
    """Picks for JSON, arrays [nodes][bytes], or for one ``row`` arrays [bytes]; names are None if nothing can run."""
    names = {kind: np.array([*(each.name for each in kind), None], object) for kind in (Algorithm, Protocol)}
    return {
        "algorithm": names[Algorithm][picks.algorithm[row]],
        "protocol": names[Protocol][picks.protocol[row]],
        "channels": picks.channels[row],
        "threads": picks.threads[row],
        "time_us": known(picks.time_us[row]),
    }


def known(values: NDArray[Any]) -> list[Any]:
    """The values as lists, with None in place of NaN."""
    if values.ndim > 1:
        return [known(row) for row in values]
    return [shortest(value) if np.isfinite(value) else None for value in values]


def _map(
    described: Scenario, request: Request, sizes: SizeArray, nodes: list[int], measured: str | None, out: Path | None
) -> None:
    """Draws what NCCL picks over sizes and node counts: algorithm as colour, protocol as hatch."""
    with bar_of_nodes(nodes) as bar:
        drawn = choices(described, request, sizes, nodes, progress=lambda: bar.update(1))

    marks = [] if measured is None else _marks(measured, drawn.nodes, request.collective)

    def record() -> dict[str, object]:
        where = {**_of_call(request), **_of_machine(described), "nodes": drawn.nodes, "bytes": drawn.bytes}
        return {**where, **_of_picks(drawn)}

    def draw() -> "Figure":
        from tuner.answers.charts import figures

        return figures.choice_map(drawn, f"{request.title}: what NCCL picks", nodes_alike(described), marks)

    def says() -> str:
        picks = np.stack([drawn.algorithm, drawn.protocol], axis=2)[drawn.algorithm >= 0]
        number = len(np.unique(picks, axis=0))
        loses = sum(mark.loses for mark in marks)
        points = f"; the pick loses at {loses} of {len(marks)} measured points" if marks else ""
        return f"{number} combinations on {len(drawn.nodes)} node counts at {len(drawn.bytes)} sizes{points}"

    deliver(out, record, draw, says)


def _marks(measured: str, nodes: Sequence[int], collective: Collective) -> "list[RegretMark]":
    """The points of a measured table at the drawn node counts. BadInput if there are none."""
    from tuner.answers.charts.figures import RegretMark
    from tuner.times.regret import workflow

    file = Path(measured)
    sources = workflow.RunsQuery(files=(file,)) if file.exists() else workflow.RunsQuery(tables=(measured,))
    marks = [
        RegretMark(nodes.index(one.call.nodes), one.call.bytes, one.regret, one.loses)
        for one in workflow.of_arms(workflow.read(sources)).sizes
        if one.call.collective is collective and one.call.nodes in nodes and one.regret is not None
    ]
    if not marks:
        raise BadInput(
            f"{measured} has no times of both NCCL's pick and a forced choice for {collective.name} on these node "
            "counts"
        )
    return marks


def _curves(described: Scenario, request: Request, sizes: SizeArray, out: Path | None) -> None:
    """Draws predicted time and bus bandwidth of every combination, and NCCL's pick."""
    drawn = curves(described, request, sizes)

    def record() -> dict[str, object]:
        times_us = zip(drawn.algo_protos, drawn.time_us, strict=True)
        return {
            **_of_call(request),
            **_of_machine(described),
            "nodes": described.nodes,
            "ranks": described.ranks,
            "bytes": drawn.bytes,
            "bus_factor": drawn.bus_factor,
            "pick": _of_picks(drawn.picks, 0),
            "time_us": {f"{a.name}/{p.name}": known(us) for (a, p), us in times_us},
        }

    def draw() -> "Figure":
        from tuner.answers.charts import figures as picture

        what = f"{request.title}: predicted time and bus bandwidth"
        return picture.curves(drawn, what, described.heading)

    def says() -> str:
        return f"{len(drawn.algo_protos)} combinations at {len(drawn.bytes)} sizes"

    deliver(out, record, draw, says)


def _diff(
    first: Scenario,
    request: Request,
    sizes: SizeArray,
    nodes: list[int],
    assignments: tuple[str, ...],
    out: Path | None,
) -> None:
    """Draws where another release or setting changes the pick: before, after, and the predicted times."""
    second = options.after(first, assignments)
    if second == first:
        raise BadInput(
            "nothing differs: say what changes with --change KEY=VALUE, such as nccl=2.28.9 or NCCL_ALGO=Ring"
        )
    if second.nodes != first.nodes:
        raise BadInput("--change nodes does not apply, as the picture is drawn over node counts: change something else")
    with bar_of_nodes([*nodes, *nodes]) as bar:
        before, after = (choices(one, request, sizes, nodes, lambda: bar.update(1)) for one in (first, second))

    def record() -> dict[str, object]:
        return {
            **_of_call(request),
            "nodes": nodes,
            "bytes": sizes,
            "before": {**_of_machine(first), **_of_picks(before)},
            "after": {**_of_machine(second), **_of_picks(after)},
            "changed": changed(before, after),
            "ratio": known(ratio(before, after)),
        }

    def draw() -> "Figure":
        from tuner.answers.charts import figures

        where = nodes_alike(first), nodes_alike(second)
        return figures.difference(before, after, f"{request.title}: what changes", where)

    def says() -> str:
        share = changed(before, after).mean()
        return f"the pick changes at {share:.2%} of {len(nodes)} node counts x {len(sizes)} sizes"

    deliver(out, record, draw, says)


def _measured(
    files: tuple[Path, ...],
    labelled: tuple[tuple[str, Path], ...],
    collective: Collective | None,
    out: Path | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Draws measured times and what NCCL's model predicts, and their ratio."""
    if not files and not labelled:
        raise missing_of(click.get_current_context(), "argument 'FILE...'")
    file, described, measurements = _read(files, labelled, collective, communicator)
    if collective is not None:
        blocks = tuple(block for block in measurements.blocks if block.point.collective is collective)
        if not blocks:
            raise BadMeasurement(f"{file}: has no {collective.name}")
        measurements = replace(measurements, blocks=blocks)
    given = measurements.header
    comparison = JudgedFile(measurements, EmulatedModel(Selection(described.communicator())))
    if not comparison.kinds:
        why = comparison.skipped[0].reason if comparison.skipped else "no times that count"
        raise BadMeasurement(f"{file}: nothing to draw: {why}")

    def record() -> dict[str, object]:
        return {"kinds": [_pictured(described, kind, series(comparison, kind)) for kind in comparison.kinds]}

    def draw() -> "Figure":
        from tuner.bench import figures

        simulated = ", simulated times" if given.is_simulated else ""
        return figures.measured([comparison], [f"{file.name}: {described.heading}{simulated}"])

    def says() -> str:
        kinds = comparison.kinds
        names = ", ".join(sorted({kind.collective.name for kind in kinds}))
        return f"{sum(map(len, kinds.values()))} points of {names}, {given.origin}"

    deliver(out, record, draw, says)


def _topology(graph: str, out: Path | None, described: Scenario) -> None:
    """Draws the devices and links of a node, with the bandwidth of every link that each channel of a graph uses."""
    from tuner.answers import graphs
    from tuner.cli.reports.machine_picture import picture

    _wanted(out, "FILE.svg")
    if out is not None and out.suffix.lower() != ".svg":
        raise BadInput(f"{out}: 'plot topology' writes SVG; valid: --out FILE.svg")
    explanation = graphs.limited(described, graph)
    found = graphs.of_scenario(described).get(graph)
    orders = found.orders if found else ()
    if out is not None:
        write_text(out, printable(picture(explanation, described.title)))
    if json_wanted():
        print_json({**to_json(explanation), "orders": orders})
        return
    path = f"; channel 0: {' '.join(orders[0])}" if orders else ""
    say(f"{out}: {graph}, {plural(len(orders), 'channel')}{path}")


def _accuracy(out: Path | None) -> None:
    classes = left_out.accuracy()

    def draw() -> "Figure":
        from tuner.answers.charts import figures

        return figures.left_out_sites(classes)

    all_given = ", ".join(f"{100 * each.error:.1f} %" for each in classes if each.gpu == left_out.ALL)
    deliver(out, lambda: {"classes": classes}, draw, lambda: f"errors with 0, 1 and 4 rows of a site: {all_given}")


def _read(
    files: tuple[Path, ...],
    labelled: tuple[tuple[str, Path], ...],
    collective: Collective | None,
    communicator: options.CommunicatorOptions,
) -> tuple[Path, Scenario, Measurements]:
    """Reads a file; returns its name, the communicator and the times. Several files, or one that forces something, are
    read as arms."""
    described_there = any(communicator[name] for name in ("machine", "topology", "log"))
    if described_there and (labelled or len(files) > 1 or MeasurementFile(files[0]).forces):
        placed, described = runs_there(files, {**communicator.given, "labelled": labelled})
        return files[0] if files else labelled[0][1], described, of_communicator(placed, described)
    if labelled or len(files) > 1:
        raise BadInput("--arm and several FILEs need --machine NAME, --topology FILE or --log FILE, and --nccl")
    measurements = read_any(files[0], collective)
    return files[0], _scenario(files[0], measurements, communicator), measurements


def _scenario(file: Path, measurements: Measurements, communicator: options.CommunicatorOptions) -> Scenario:
    """The scenario that the options, or else the header of the file, describe."""
    given = measurements.header
    if not communicator.says_where:
        if given.scenario is None:
            raise BadInput(f"{file} does not say where it was measured; add --machine NAME --nodes N --nccl RELEASE")
        if said := [name for name in communicator.given if options.is_given(name)]:
            option = f"--{said[0].replace('_', '-')}"
            raise BadInput(
                f"{option} does not apply, as {file} says its communicator: remove it, or describe another "
                "communicator with --machine or --topology"
            )
        return given.scenario
    if given.nccl:
        nearest, stand_in = nearest_release(given.nccl)
        given = replace(given, nccl=nearest)
        if stand_in:
            note_after(stand_in)
    described = communicator.scenario(nccl=communicator["nccl"] or given.nccl)
    header.check(file, given, described)
    return described


def _pictured(scenario: Scenario, kind: Point, drawn: list[Series]) -> dict[str, object]:
    """Measured times of a kind of call with their bounds, and predicted times; without channels, NCCL's own number is
    meant."""
    series = [
        {
            "algorithm": one.combination.algorithm,
            "protocol": one.combination.protocol,
            "channels": one.combination.channels or None,
            "bytes": one.bytes,
            **{name: known(getattr(one, name)) for name in ("measured_us", "low_us", "high_us", "predicted_us")},
        }
        for one in drawn
    ]
    call = {name: getattr(kind, name) for name in ("collective", "dtype", "op")}
    how = {"in_place": bool(kind.in_place), "graph": kind.graph}
    size = {"nodes": scenario.nodes, "ranks": scenario.ranks}
    return {**call, **how, **_of_machine(scenario), **size, "series": series}


SIZES = ("from_bytes", "to_bytes", "points")
NODES = ("to_nodes", "nodes_list")
CALL = ("dtype", "op", "buffers")
PAGE = ("tuner", "time", "calibration")
MEANINGLESS = {  # parameters of other kinds of pictures
    "map": ("assignments", "labelled", "of_collective", *PAGE),
    "curves": ("assignments", "labelled", "of_collective", "measured", *NODES, *PAGE),
    "diff": ("labelled", "of_collective", "measured", *PAGE),
    "measured": ("assignments", "measured", *SIZES, *NODES, *CALL, *PAGE),
    "page": ("assignments", "labelled", "of_collective", "measured", "buffers", *SIZES, *NODES),
    "accuracy": ("assignments", "labelled", "of_collective", "measured", *SIZES, *NODES, *CALL, *PAGE),
    "topology": ("assignments", "labelled", "of_collective", "measured", *SIZES, *NODES, *CALL, *PAGE),
}


def _is_kind(kind: str) -> Callable[[Params], bool]:
    return lambda params: params["kind"] == kind


RULES = [excludes(kind, *names, when=_is_kind(kind)) for kind, names in MEANINGLESS.items()]


@click.command(name="plot", cls=options.Command, rules=RULES)
@options.under("Maps: map and diff", "--to-nodes", "--nodes-list", "--measured", "--change")
@options.under("Sizes of map, curves and diff", "--from", "--to", "--points")
@options.under("Measured times", "--collective", "--arm")
@options.under("The page", "--time")
@click.argument("kind", type=click.Choice(tuple(MEANINGLESS)), metavar="KIND")
@click.argument("words", nargs=-1, metavar="COLLECTIVE|FILE...|GRAPH")
@options.option("--from", "from_bytes", "The smallest size.", type=options.size_bytes, default="8", metavar="SIZE")
@options.option("--to", "to_bytes", "The largest size.", type=options.size_bytes, default="16G", metavar="SIZE")
@options.option(
    "--points", "Number of sizes from --from to --to, at equal ratios.", type=click.IntRange(2, 100_000), default=400
)
@options.option(
    "--to-nodes",
    "Draw every number of nodes up to this one. [default: 64]",
    type=click.IntRange(1, MOST_ROWS),
    metavar="N",
)
@options.option("--nodes-list", "Draw these numbers of nodes instead, such as 1,2,4,8,512.", metavar="N,N,...")
@options.option(
    "--measured",
    "map: also mark the points at which this table has times of both the pick and another choice, and what the "
    "pick loses there.",
    metavar="NAME|FILE",
)
@options.change_option
@options.option(
    "--collective",
    "of_collective",
    "Draw only this collective; it is also used for an nccl-tests text that does not name its collective. "
    "[default: all]",
    type=options.Named(Collective, "collective"),
)
@arm_option
@of_all_ranks
@options.communicator_options(
    several_releases="NCCL release. [default: the newest that runs on the machine; page: all, or these; repeatable]",
    tuner=True,
)
@options.call_options(in_place=False, windows=False)
@options.time_options("nccl", "page: both")
@options.out_option("FILE", "The picture to write: .png, .svg or .pdf; for page .html.", required=False)
@options.json_option
def command(
    kind: str,
    words: tuple[str, ...],
    measured: str | None,
    assignments: tuple[str, ...],
    of_collective: Collective | None,
    labelled: tuple[tuple[str, Path], ...],
    communicator: options.CommunicatorOptions,
    times: "TimesWanted | None",
    out: Path | None,
    call: Request,
    from_bytes: int,
    to_bytes: int,
    points: int,
    to_nodes: int | None,
    nodes_list: str | None,
) -> None:
    """Pictures of choices and times; --out FILE.png or FILE.svg draws one, --json prints what it shows.

    KIND is map: what NCCL picks for COLLECTIVE over sizes and node counts, algorithm as colour, protocol as hatch.
    curves: predicted time and bus bandwidth of every combination that COLLECTIVE may use, and NCCL's pick. diff: where
    another release or setting (--change) changes the pick, over sizes and node counts. measured: times in FILEs, of
    'nccl-tuner measure' or nccl-tests, against what NCCL's model predicts, and their ratio. page: one HTML page of a
    machine, with its picks by size, nodes, collective and release, and why; it opens with --nodes. accuracy: how far
    off calibrated times between nodes are at sites that nothing was learnt from, beside NCCL's own. topology: the
    devices and links of a node, and what each channel of GRAPH (ring, tree, nvls; by default ring) takes of them; SVG.

    A file of nccl-tests does not say where it was measured: --machine, --topology or --log, --nodes and --nccl do.
    Several FILEs, and those of --arm, are runs of one communicator; each says by NCCL_ALGO and NCCL_PROTO, or by NAME,
    what it forced.

    \b
    nccl-tuner plot map allreduce --machine dgx-h100 --nccl 2.28.9 --to-nodes 64 --out map.png
    nccl-tuner plot map allgather --machine dgx-h100 --nodes-list 1,2,4,8,16 --from 1K --to 1G --points 100 --json
    nccl-tuner plot map allreduce --machine dgx-b200 --measured b200-8x-64n__2.29.7__together --out map.png
    nccl-tuner plot curves allreduce --machine dgx-h100 --nodes 4 --nccl 2.28.9 --out curves.svg
    nccl-tuner plot page --machine dgx-h100 --nodes 2 --nccl 2.22.3 --nccl 2.25.1 --out upgrade.html
    nccl-tuner plot diff allreduce --machine dgx-h100 --nccl 2.18.1 --change nccl=2.28.9 --out diff.png
    nccl-tuner plot diff allreduce --machine dgx-h100 --nccl 2.28.9 --change NCCL_ALGO=Ring --to-nodes 16 --json
    nccl-tuner plot topology --machine dgx-h100 --nodes 2 --nccl 2.28.9 --out ring.svg
    nccl-tuner plot measured run.jsonl --collective allreduce --out measured.png
    nccl-tuner plot measured all_reduce_perf.log --machine dgx-h100 --nodes 2 --nccl 2.28.9 --out measured.svg
    nccl-tuner plot measured plain.log --arm Ring=ring.log --machine dgx-h100 --nodes 2 --nccl 2.28.9 --out arms.svg
    """
    if kind == "page":
        if words:
            raise BadInput(f"{words[0]}: 'plot page' always shows every collective; remove the argument")
        from tuner.cli.reports.page import write_page

        write_page(communicator, call, options.times_or_both(times), out)
        return
    if kind == "accuracy":
        if words:
            raise BadInput(f"{words[0]}: 'plot accuracy' always shows every class of GPUs; remove the argument")
        _accuracy(out)
        return
    if len(communicator["nccl"]) > 1:
        raise BadInput("only 'plot page' takes several releases (--nccl twice); give one")
    communicator = communicator.but(nccl=next(iter(communicator["nccl"]), None)).without("tuner")
    if kind == "measured":
        _measured(tuple(map(Path, words)), labelled, of_collective, out, communicator)
        return
    if kind == "topology":
        from tuner.cli.graphs import GRAPHS

        graph = words[0].lower() if words else "ring"
        if len(words) > 1 or graph not in GRAPHS:
            raise BadInput(f"topology {' '.join(words)}: name one graph; {one_of(GRAPHS)}")
        _topology(graph, out, communicator.scenario())
        return
    if len(words) != 1:
        raise BadInput(f"{kind}: name the collective to draw: {', '.join(each.name for each in Collective)}")
    request = replace(call, collective=options.Named(Collective, "collective").convert(words[0], None, None))
    described, sizes = communicator.scenario(), sizes_of(from_bytes, to_bytes, points)
    if kind == "curves":
        _curves(described, request, sizes, out)
        return
    nodes = nodes_of(described, to_nodes, nodes_list)
    if kind == "map":
        _map(described, request, sizes, nodes, measured, out)
    else:
        _diff(described, request, sizes, nodes, assignments, out)
