"""Pictures: what they show is what the emulator says, and nothing in them hides anything else."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import nccl_tuner
from tuner.answers.charts import palette
from tuner.answers.choices import NOTHING, Choices, choices, curves
from tuner.base.errors import BadInput, BadMeasurement, NoAlgorithm
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.cli import everything
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.measured.formats import read_any
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Point, SampleBlock, Writer
from tuner.times.verify import EmulatedModel, JudgedFile

pytest.importorskip("matplotlib")

from tuner.answers.charts import figures, save
from tuner.answers.charts.figures import RegretMark
from tuner.answers.charts.parts import PICKS, size_edges
from tuner.bench import figures as measured_figures

SUM = Request(Collective.AllReduce, DataType.float32, Op.sum)
CASE = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1)
SIZES = np.unique(np.geomspace(8, 2**61, 60).astype(np.uint64))  # beyond what NCCL 2.28.9 takes
NODES = [1, 2, 3, 4, 8, 9]
DOCUMENT = Path(__file__).parents[2] / "docs" / "plots.md"
B200 = "b200-8x-64n__2.29.7__together"
MAP = ("plot", "map", "allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9")


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(everything, [*arguments], catch_exceptions=False)


def name(algorithm: int, protocol: int) -> str:
    return f"{Algorithm(algorithm).name}/{Protocol(protocol).name}" if algorithm >= 0 else "nothing can run"


def named(shown: Choices) -> list[list[str]]:
    return [
        [name(*algo_proto) for algo_proto in zip(*rows, strict=True)]
        for rows in zip(shown.algorithm, shown.protocol, strict=True)
    ]


def drawn(axes: Any, sizes: Any, rows: int) -> list[list[str]]:
    """The label of the area over the middle of each cell, [row][size]; exactly one area is there."""
    edges = size_edges(sizes)
    middles = np.sqrt(edges[1:] * edges[:-1])
    points = np.array([(x, row) for row in range(rows) for x in middles])
    areas = [patch for patch in axes.patches if patch.get_fill()]
    over = np.array([area.get_path().contains_points(points) for area in areas])
    assert (over.sum(axis=0) == 1).all()
    labels = [areas[number].get_label() for number in over.argmax(axis=0)]
    return [labels[row * len(sizes) : (row + 1) * len(sizes)] for row in range(rows)]


def test_the_map_shows_the_picks() -> None:
    found = choices(CASE, SUM, SIZES, NODES)
    figure = figures.choice_map(found, "what", "where")
    picks = named(found)
    assert drawn(figure.axes[0], SIZES, len(NODES)) == picks
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(legend) == sorted({one for row in picks for one in row})
    assert "nothing can run" in legend


def test_the_map_marks_where_a_measured_pick_loses(tmp_path: Path) -> None:
    words = ["--machine", "dgx-b200", "--nccl", "2.29.7", "--from", "1G", "--nodes-list", "1,16"]
    said = invoke("plot", "map", "allreduce", *words, "--measured", B200, "--out", str(tmp_path / "map.png")).output
    assert "the pick loses at 1 of 6 measured points" in said
    marks = [RegretMark(0, 2 << 30, 0.0, loses=False), RegretMark(1, 2 << 30, 0.154, loses=True)]
    sizes = np.array([1 << 30, 1 << 33], np.uint64)
    (axes,) = figures.choice_map(choices(CASE, SUM, sizes, [1, 16]), "what", "where", marks).axes
    assert [text.get_text() for text in axes.texts] == ["+15 %"]
    colours = [line.get_color() for line in axes.lines]
    assert colours == [figures.NO_LOSS, figures.LOSS]


def test_a_table_without_the_machines_points_is_refused() -> None:
    with pytest.raises(BadInput, match="has no times of both NCCL's pick and a forced choice for AllReduce"):
        invoke("plot", "map", "allreduce", "--machine", "dgx-b200", "--nodes-list", "3", "--measured", B200, "--json")


def test_areas_have_the_colour_of_the_algorithm_and_the_hatch_of_the_protocol() -> None:
    from matplotlib.colors import to_hex

    from tuner.answers.charts.palette import COLOURS, HATCHES

    figure = figures.choice_map(choices(CASE, SUM, SIZES, NODES), "what", "where")
    for area in figure.axes[0].patches:
        if "/" in (label := str(area.get_label())):
            algorithm, protocol = label.split("/")
            assert to_hex(area.get_facecolor()).upper() == COLOURS[Algorithm[algorithm]]
            assert set(area.get_hatch() or "") == set(HATCHES[Protocol[protocol]])


def test_json_of_the_map_is_what_the_selection_picks() -> None:
    found = json.loads(invoke(*MAP, "--nodes-list", "2,1,5", "--points", "40", "--from", "1K", "--json").output)
    assert found["nodes"] == [1, 2, 5]
    assert (found["bytes"][0], found["bytes"][-1], len(found["bytes"])) == (1024, 16 << 30, 40)
    for row, nodes in enumerate(found["nodes"]):
        picks = Selection(replace(CASE, nodes=nodes).communicator()).pick(SUM, np.array(found["bytes"]))
        assert found["algorithm"][row] == [Algorithm(one).name for one in picks.algorithm]
        assert found["protocol"][row] == [Protocol(one).name for one in picks.protocol]
        assert (found["channels"][row], found["threads"][row]) == (picks.channels.tolist(), picks.threads.tolist())
        assert np.array_equal(np.array(found["time_us"][row], np.float32), picks.time_us)


def test_the_curves_are_the_cost_table_and_the_pick() -> None:
    scenario = replace(CASE, nodes=2)
    found = curves(scenario, SUM, SIZES)
    _, times, bandwidths = figures.curves(found, "what", "where").axes
    table_us = Selection(scenario.communicator()).cost_table(SUM, SIZES)
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in times.get_lines()}
    assert len(lines) == len(found.algo_protos) + 1 == 8
    for algo_proto in found.algo_protos:
        assert np.array_equal(lines[name(*algo_proto)], table_us[:, *algo_proto])
    assert np.array_equal(lines["NCCL's pick"], found.picks.time_us[0], equal_nan=True)
    assert np.isnan(lines["NCCL's pick"][-1])
    busbw = {line.get_label(): np.asarray(line.get_ydata()) for line in bandwidths.get_lines()}["Ring/Simple"]
    expected = 2 * 15 / 16 * SIZES.astype(float) / table_us[:, Algorithm.Ring, Protocol.Simple] / 1e3
    assert busbw == pytest.approx(expected, rel=1e-6)


def test_curves_of_nothing_say_why() -> None:
    with pytest.raises(NoAlgorithm, match="PAT does not do AllReduce"):
        curves(replace(CASE, environment={"NCCL_ALGO": "PAT"}), SUM, SIZES)


def labels_over(axes: Any, sizes: Any) -> list[str]:
    """The label of the area of a bar over each size in bytes; exactly one is there."""
    areas = [patch for patch in axes.patches if patch.get_fill()]
    over = np.array([area.get_path().contains_points([(float(size), 0) for size in sizes]) for area in areas])
    assert (over.sum(axis=0) == 1).all()
    return [areas[number].get_label() for number in over.argmax(axis=0)]


def middles(ranges: Any) -> Any:
    return (ranges.from_bytes.astype(float) + ranges.to_bytes.astype(float) + 1) / 2


H100 = nccl_tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")


def test_picks_plot_the_times_of_all_that_the_call_may_use(tmp_path: Path) -> None:
    sizes = [1 << 30, 8, 65536, 1 << 20, 8]  # in any order, and twice
    picks = H100.pick("allreduce", sizes)
    figure: Any = picks.plot(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.get_suptitle() == "AllReduce, float32 sum: predicted time and bus bandwidth"
    assert figure.axes[0].get_title(loc="left") == H100.scenario.heading
    lines = {line.get_label(): line for line in figure.axes[1].get_lines()}
    assert lines["NCCL's pick"].get_xdata().tolist() == [8, 65536, 1 << 20, 1 << 30]
    assert lines["NCCL's pick"].get_ydata().tolist() == picks.time_us[[1, 2, 3, 0]].tolist()
    table_us = H100.cost_table("allreduce", [8, 65536, 1 << 20, 1 << 30])
    assert len(lines) == 1 + (table_us[0] >= 0).sum()
    assert lines["Ring/LL"].get_ydata().tolist() == table_us[:, Algorithm.Ring, Protocol.LL].tolist()


def bars(figure: Any) -> dict[str, tuple[float, str]]:
    """Of each name along the axis the length of the bar, and the text at its end."""
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert [bar.get_label() for bar in axes.patches] == names
    lengths, texts = [bar.get_width() for bar in axes.patches], [text.get_text() for text in axes.texts]
    return dict(zip(names, zip(lengths, texts, strict=True), strict=True))


def test_one_pick_and_its_explanation_plot_the_same_bars() -> None:
    explained = H100.explain("allreduce", 1 << 20)
    drawn = bars(explained.plot())
    first, second, *_ = drawn.items()
    assert first == ("Tree/LL128", (explained.pick.time_us, "62.51 us, NCCL's pick"))
    assert second == ("NVLSTree/Simple", (explained.slower[0].time_us, "71.06 us, +13.7 %"))
    assert [*drawn] == ["Tree/LL128", *(f"{each.algorithm.name}/{each.protocol.name}" for each in explained.slower)]
    picked = bars(H100.pick("allreduce", 1 << 20).plot())
    assert [(name, text) for name, (_, text) in picked.items()] == [(name, text) for name, (_, text) in drawn.items()]


def test_no_sizes_have_no_picture() -> None:
    with pytest.raises(BadInput, match="one or more"):
        H100.pick("allreduce", []).plot()


def test_edges_plot_each_range_with_its_channels_and_threads() -> None:
    ranges = H100.edges("allreduce")
    figure: Any = ranges.plot()
    bar, channels, threads = figure.axes
    picks = zip(ranges.algorithm, ranges.protocol, strict=True)
    assert labels_over(bar, middles(ranges)) == [name(*each) for each in picks]
    for axes, values in ((channels, ranges.channels), (threads, ranges.threads)):
        drawn = axes.patches[0].get_data()
        assert drawn.values.tolist() == values.tolist()
        assert drawn.edges.tolist() == [*ranges.from_bytes.tolist(), ranges.to_bytes[-1] + 1]


def test_edges_of_windows_plot_the_kernels_that_bypass_the_algorithms() -> None:
    ranges = nccl_tuner.communicator("dgx-h100", nccl="2.30.7").edges("allreduce", buffers="window", high=1 << 24)
    figure: Any = ranges.plot()
    assert None not in ranges.bypass
    assert labels_over(figure.axes[0], middles(ranges)) == [*ranges.bypass]
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == sorted(set(map(str, ranges.bypass)))
    assert len(shown) > 1


def test_changes_plot_both_and_the_ratio_where_the_pick_changes() -> None:
    before, after = (nccl_tuner.communicator("dgx-h100", nodes=2, nccl=release) for release in ("2.22.3", "2.25.1"))
    changes = before.diff(after, "broadcast")
    (change,) = changes
    figure: Any = changes.plot()
    upper, lower, ratios = figure.axes
    at = [change.from_bytes - 8, change.from_bytes + 8, change.at_bytes, change.to_bytes - 8, change.to_bytes + 8]
    assert labels_over(upper, at) == 4 * ["Ring/LL128"] + ["Ring/Simple"]
    assert labels_over(lower, at) == ["Ring/LL128"] + 4 * ["Ring/Simple"]
    line, _ = ratios.get_lines()
    assert line.get_xdata().tolist() == [change.from_bytes, change.at_bytes, change.to_bytes]
    assert line.get_ydata().tolist() == [change.ratio_from, change.ratio, change.ratio_to]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        f"before: {before.scenario.heading}",
        f"after: {after.scenario.heading}",
        "where the pick changes",
    ]
    assert before.diff(before, "broadcast").plot().axes[2].get_title(loc="left") == "no pick changes"


def made(algorithms: list[int], times_us: list[float]) -> Choices:
    row = np.array([algorithms], np.int8)
    none = np.zeros(row.shape, np.int64)
    return Choices((1,), SIZES[: row.size], row, np.minimum(row, 0), none, none, np.array([times_us], np.float32))


def test_classes_of_differences() -> None:
    before = made([0, 0, 0, 0, 0, NOTHING, NOTHING], [10, 10, 10, 10, 10, np.nan, np.nan])
    after = made([0, 1, 1, 1, NOTHING, 1, NOTHING], [99, 4, 10, 21, np.nan, 1, np.nan])
    labels = [figures.STYLES[number].label for number in figures.classes(before, after)[0]]
    assert labels == [
        "same pick",
        "up to 0.50",
        "0.95 to 1.05",
        "above 2.00",
        "runs only before",
        "runs only after",
        "nothing can run",
    ]


def test_the_difference_shows_both_maps_and_the_ratio_where_the_pick_changes() -> None:
    sizes = np.unique(np.geomspace(8, 2**61, 400).astype(np.uint64))  # so many that only the protocol changes at some
    before, after = (choices(replace(CASE, nccl=nccl), SUM, sizes, NODES) for nccl in ("2.18.1", "2.32.3"))
    figure = figures.difference(before, after, "what", ("one", "other"))
    upper, middle, labels = (np.array(drawn(axes, sizes, len(NODES))) for axes in figure.axes)
    assert upper.tolist() == named(before)
    assert middle.tolist() == named(after)
    assert ((labels == "same pick") == (upper == middle)).all()
    ratios = after.time_us / before.time_us
    for label, ratio in zip(labels.ravel(), ratios.ravel(), strict=True):
        if " to " in label and not label.startswith("up"):
            low, high = map(float, label.split(" to "))
            assert low - 0.003 <= ratio <= high + 0.003
    assert "runs only after" in labels


def test_json_of_the_difference_compares_both() -> None:
    grid = ("--to-nodes", "3", "--points", "9", "--json")
    answer = json.loads(invoke("plot", "diff", *MAP[2:], "--change", "NCCL_ALGO=Ring", *grid).output)
    assert answer["after"]["environment"] == {"NCCL_ALGO": "Ring"}
    assert {one for row in answer["after"]["algorithm"] for one in row} == {"Ring"}
    for row in range(3):
        for column in range(9):
            picks = [
                tuple(answer[which][part][row][column] for part in ("algorithm", "protocol"))
                for which in ("before", "after")
            ]
            times = [answer[which]["time_us"][row][column] for which in ("before", "after")]
            assert answer["changed"][row][column] == (picks[0] != picks[1])
            assert answer["ratio"][row][column] == pytest.approx(times[1] / times[0])


def overlapping(figure: Any) -> list[tuple[str, str]]:
    """Pairs of texts of one figure that lie over each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    seen, draw = set(), Text.draw

    def record(text: Text, *rest: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            seen.add(text)
        draw(text, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)  # ticks beyond an axis are texts that are not drawn
        FigureCanvasAgg(figure).draw()
    boxes = {text: text.get_window_extent() for text in seen}
    assert len(boxes) > 5
    return [(str(one), str(other)) for one, other in combinations(boxes, 2) if boxes[one].overlaps(boxes[other])]


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("high", [9, 16 << 30, 1 << 62])
@pytest.mark.parametrize("nodes", [list(range(1, 18)), list(range(2, 65)), [1 << power for power in range(21)]])
def test_no_text_hides_another(high: int, nodes: list[int]) -> None:
    sizes = np.unique(np.geomspace(8, high, 30).astype(np.uint64))
    shape = len(nodes), len(sizes)
    shown = Choices(
        tuple(nodes),
        sizes,
        np.ones(shape, np.int8),
        np.ones(shape, np.int8),
        np.ones(shape, np.int64),
        np.ones(shape, np.int64),
        np.ones(shape, np.float32),
    )
    long = "dgx-h100, 8 GPUs per node, NCCL 2.28.9" + ", NCCL_MIN_NCHANNELS=16" * 8
    assert overlapping(figures.choice_map(shown, "AllReduce, float32 sum: what NCCL picks", long)) == []
    assert overlapping(figures.difference(shown, shown, "AllReduce, float32 sum: what changes", (long, long))) == []


def test_no_text_of_curves_hides_another() -> None:
    assert overlapping(figures.curves(curves(CASE, SUM, SIZES), "what", "where")) == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_equal_pictures_are_equal_files(tmp_path: Path, ending: str) -> None:
    shown = choices(CASE, SUM, SIZES, [1, 2])
    files = [tmp_path / f"{number}{ending}" for number in range(2)]
    for file in files:
        save(figures.choice_map(shown, "what", "where"), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"CreationDate" not in files[0].read_bytes()


RUN = "\n".join(
    [
        "# nThread 1 nGpus 8 minBytes 65536 maxBytes 1048576",
        "# Collective test starting: all_reduce_perf",
        "#  size   count    type   redop    root    time   algbw   busbw #wrong    time   algbw   busbw #wrong",
        "  65536  16384  float  sum  -1  40.10  26.15  26.15  0  39.90  26.28  26.28  0",
        "  1048576  262144  float  sum  -1  60.10  26.15  26.15  0  59.90  26.28  26.28  0",
        "",
    ]
)
WHERE = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


def test_measured_times_stand_beside_what_the_model_predicts(tmp_path: Path) -> None:
    file, out = tmp_path / "run.log", tmp_path / "run.svg"
    file.write_text(RUN)
    shown = json.loads(invoke("plot", "measured", str(file), *WHERE, "--json", "--out", str(out)).output)
    apart, together = shown["kinds"]
    assert (apart["in_place"], together["in_place"]) == (False, True)
    picks = {"Tree/LL": (65536, 40.1), "Tree/LL128": (1048576, 60.1)}  # of README
    selection = Selection(replace(CASE, nodes=2).communicator())
    for series in apart["series"]:
        combination = f"{series['algorithm']}/{series['protocol']}"
        size, measured_us = picks.pop(combination)
        assert series["bytes"] == [size]
        assert series["measured_us"] == [pytest.approx(measured_us)]
        algo_proto = Algorithm[series["algorithm"]], Protocol[series["protocol"]]
        assert series["predicted_us"] == [pytest.approx(float(selection.cost_table(SUM, [size])[0][algo_proto]))]
        assert combination in out.read_text()
    assert not picks


@pytest.mark.slow
def test_a_name_is_shown_as_it_is_and_what_moves_has_no_operation(tmp_path: Path) -> None:
    file = tmp_path / "a$\\frac$_<b>.log"
    file.write_text(RUN.replace("all_reduce", "all_gather"))
    where = (*WHERE, "--collective", "allgather", "--out")
    for ending in (".png", ".PNG", ".SVG"):
        invoke("plot", "measured", str(file), *where, str(tmp_path / f"x{ending}"))
    shown = (tmp_path / "x.SVG").read_text()
    assert "a$\\frac$_&lt;b&gt;.log: 2 x dgx-h100" in shown
    assert "AllGather, float32, out of place" in shown
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "x.PNG").read_bytes()


def test_a_prediction_of_one_size_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text(RUN)
    compared = JudgedFile(read_any(file), EmulatedModel(Selection(replace(CASE, nodes=2).communicator())))
    parts = measured_figures.measured([compared], ["run.log"]).subfigs
    predicted = [line for part in parts for line in part.axes[0].get_lines() if line.get_label() == "_predicted"]
    assert [(np.size(line.get_xdata()), line.get_marker()) for line in predicted] == 4 * [(1, "_")]
    assert all(line.get_markeredgecolor() == line.get_color() for line in predicted)


def test_measured_needs_the_communicator_and_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text(RUN.replace("# Coll", "#  Rank  0 Group  0 Pid   9 on  a device  0 [0x07] NVIDIA H100\n# Coll"))
    runner = CliRunner()
    for arguments, says in (((), "does not say where it was measured"), (WHERE, "measured on 1 ranks; valid: ")):
        done = runner.invoke(everything, ["plot", "measured", str(file), *arguments, "--json"])
        assert isinstance(done.exception, BadInput | BadMeasurement)
        assert says in str(done.exception)


def test_a_file_that_says_its_communicator_is_of_no_other(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
    with Writer(file, Header(scenario=scenario, ranks=16)) as writer:
        writer.add(SampleBlock(Point(Collective.AllReduce, 1 << 20), None, None, (50.0,)))
    drawn = ("plot", "measured", str(file), "--json")
    theirs, newer = (
        json.loads(invoke(*drawn, *more).output)["kinds"][0] for more in ((), (*WHERE[:4], "--nccl", "2.32.3"))
    )
    assert (theirs["nccl"], newer["nccl"]) == ("2.28.9", "2.32.3")
    for options, says in (
        (("--machine", "dgx-a100", "--nodes", "2"), "measured on 2 x dgx-h100"),
        (("--nccl", "2.20.5"), "--nccl does not apply"),
        (("--nodes", "1"), "--nodes does not apply"),
        (("--collective", "broadcast"), "has no Broadcast"),
    ):
        done = CliRunner().invoke(everything, [*drawn, *options])
        assert isinstance(done.exception, BadInput | BadMeasurement)
        assert says in str(done.exception)


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing requested": (MAP, "add --out FILE"),
    "ending": ((*MAP, "--out", "x.gif"), ".png"),
    "folder": ((*MAP, "--out", "/nonexistent/x.png"), "No such file"),
    "nodes": ((*MAP, "--nodes", "4", "--json"), "use --to-nodes"),
    "node": (("plot", "map", "allreduce", "--node", "dgx-h100x2", "--node", "dgx-a100", "--json"), "use --to-nodes"),
    "both": ((*MAP, "--nodes-list", "4", "--to-nodes", "4", "--json"), "without --to-nodes"),
    "list": ((*MAP, "--nodes-list", "4,,5", "--json"), "--nodes-list 4,,5"),
    "count": ((*MAP, "--nodes-list", "0", "--json"), "numbers from 1"),
    "sizes": ((*MAP, "--from", "8", "--to", "8", "--json"), "--from below --to"),
    "one rank": ((*MAP, "--gpus-per-node", "1", "--to-nodes", "1", "--json"), "two ranks or more"),
    "no change": (("plot", "diff", *MAP[2:], "--json"), "--change KEY=VALUE"),
    "release": (("plot", "diff", *MAP[2:], "--change", "nccl=1.2", "--json"), "no table for NCCL 1.2"),
}


@pytest.mark.parametrize(("arguments", "says"), BAD.values(), ids=BAD.keys())
def test_bad_input_says_what_is_valid(arguments: tuple[str, ...], says: str) -> None:
    from tuner.base.errors import TunerError

    done = CliRunner().invoke(everything, [*arguments])
    assert isinstance(done.exception, TunerError)
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path) -> None:
    start = "import sys; sys.modules['matplotlib'] = None; from tuner.cli import main; sys.argv[1:] = "
    done = python(f"{start}{[*MAP, '--to-nodes', '2', '--out', str(tmp_path / 'x.png')]!r}; main()")
    assert done.returncode == 2
    assert done.stderr == "nccl-tuner: this command needs matplotlib: pip install 'nccl-tuner[plot]'\n"
    assert python(f"{start}{[*MAP, '--to-nodes', '2', '--points', '4', '--json']!r}; main()").returncode == 0


def test_a_plot_without_matplotlib_says_what_to_install() -> None:
    start = "import sys; sys.modules['matplotlib'] = None; import nccl_tuner; "
    done = python(f"{start}nccl_tuner.communicator('dgx-h100').pick('allreduce', 8).plot()")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "MissingExtra: a picture needs matplotlib: pip install 'nccl-tuner[plot]'"
    )


def test_pictures_leave_pyplot_alone(tmp_path: Path) -> None:
    arguments = [*MAP, "--to-nodes", "2", "--out", str(tmp_path / "x.png")]
    code = f"import sys; from tuner.cli import everything; everything({arguments!r}, standalone_mode=False)"
    done = python(f"{code}; sys.exit('matplotlib.pyplot' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_the_documents_pictures_are_small_and_shown() -> None:
    pictures = list(DOCUMENT.with_suffix("").iterdir())
    assert len(pictures) == 8
    shown = "".join(DOCUMENT.with_name(f"{page}.md").read_text() for page in (DOCUMENT.stem, "two-minutes", "serving"))
    for picture in pictures:
        assert picture.stat().st_size < 100_000
        assert f"plots/{picture.name}" in shown


def test_every_pick_has_a_style() -> None:
    assert {(algorithm * len(Protocol) + protocol) for algorithm in Algorithm for protocol in Protocol} < set(PICKS)


def lightness(colour: str) -> float:
    """CIE L* of ``#RRGGBB`` (sRGB, D65), 0 to 100: what is left of a colour in grey."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16 if luminance > 216 / 24389 else luminance * 24389 / 27


def apart(one: str, other: str) -> float:
    return abs(lightness(one) - lightness(other))


def test_lightness_is_that_of_the_standard() -> None:
    """CIE 1976 L* of sRGB's primaries."""
    for colour, expected in (("#FF0000", 53.24), ("#00FF00", 87.73), ("#0000FF", 32.30), ("#FFFFFF", 100.0)):
        assert lightness(colour) == pytest.approx(expected, abs=0.01)
    assert lightness("#000000") == 0


def test_algorithms_differ_in_grey() -> None:
    assert set(palette.COLOURS) == set(Algorithm)
    for one, other in combinations([*palette.COLOURS.values(), palette.NOTHING_COLOUR], 2):
        assert apart(one, other) >= 8, (one, other)


@pytest.mark.parametrize("often", [["Tree", "Ring", "NVLS", "NVLSTree"], ["Ring", "PAT"]])
def test_what_stands_side_by_side_differs_more(often: list[str]) -> None:
    for one, other in combinations([palette.COLOURS[Algorithm[name]] for name in often], 2):
        assert apart(one, other) >= 18, (one, other)


def test_hatches_can_be_seen_on_every_colour() -> None:
    for algorithm, colour in palette.COLOURS.items():
        assert apart(colour, palette.INKS[algorithm]) >= 40, algorithm
    assert apart(palette.NOTHING_COLOUR, palette.NOTHING_INK) >= 40


def test_protocols_have_marks_of_their_own() -> None:
    for marks in (palette.HATCHES, palette.DASHES):
        assert set(marks) == set(Protocol)
        assert len(set(marks.values())) == len(Protocol)
    assert palette.NOTHING_HATCH not in palette.HATCHES.values()


def test_ratios_differ_in_grey_by_lightness_or_stripes() -> None:
    faster, alike, slower = palette.RATIOS[:3], palette.RATIOS[3], palette.RATIOS[4:]
    assert faster[-1][0] < 1 < alike[0] < slower[0][0]
    assert len({hatch for side in (faster, slower) for _, _, _, hatch in side} | {alike[3]}) == 3
    for side in (faster, slower):
        assert len({hatch for _, _, _, hatch in side}) == 1
        for (_, one, _, _), (_, other, _, _) in combinations([*side, alike], 2):
            assert apart(one, other) >= 15 or alike[1] in (one, other)
        assert all(apart(colour, ink) >= 40 for _, colour, ink, _ in side)
    assert apart(alike[1], palette.SAME_COLOUR) >= 15
