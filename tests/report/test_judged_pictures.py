"""Pictures of what was judged: sizes that fail, the band, the class and where a loss begins are the verdict's."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import run
from tuner.scenario import Scenario
from tuner.times.acceptance.accept import Acceptance, AcceptOptions, accept
from tuner.times.measured.formats import Given
from tuner.times.measured.reader import file_of

pytest.importorskip("matplotlib")

from tuner.answers.charts import judged

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NEBIUS = "h100-8x-2n__unknown__nebius"


@pytest.fixture(scope="module")
def in_a_node() -> Acceptance:
    options = AcceptOptions(Scenario(nccl="2.29.2", nodes=1, machine="dgx-h100"))
    return accept([EXAMPLES / "all_reduce.log"], options)


@pytest.fixture(scope="module")
def of_a_class() -> Acceptance:
    scenario = Scenario(nccl="2.26.2", nodes=2, machine="dgx-h100")
    return accept([file_of(Path(NEBIUS))], AcceptOptions(scenario, Given(nccl="2.26.2")))


def markers(axes: Any, colour: str) -> list[float]:
    """Sizes that have a marker of this colour."""
    lines = [line for line in axes.lines if line.get_marker() == "o" and line.get_color() == colour]
    return [size for line in lines for size in line.get_xdata()]


def test_each_size_is_drawn_as_it_was_judged(in_a_node: Acceptance) -> None:
    figure = judged.of_acceptance(in_a_node)
    assert len(figure.axes) == 2
    for axes, in_place in zip(figure.axes, (False, True), strict=True):
        sizes = [each for each in in_a_node.sizes if each.in_place is in_place]
        assert markers(axes, judged.FAILS) == [each.bytes for each in sizes if each.verdict.fails]
        assert markers(axes, judged.OWN) == [each.bytes for each in sizes if not each.verdict.fails]
        run_of = next(line for line in axes.lines if line.get_color() == judged.OWN and line.get_marker() == "None")
        assert run_of.get_ydata() == pytest.approx([100 * each.expected_us / each.time_us for each in sizes])
        (band,) = (each for each in axes.collections)
        corners = {(x, round(y, 6)) for x, y in np.asarray(band.get_paths()[0].vertices).tolist()}
        for each in sizes:
            assert (each.bytes, round(100 * each.expected_us / each.high_us, 6)) in corners
            assert (each.bytes, round(100 * each.expected_us / each.low_us, 6)) in corners
        assert "slow from 64 MiB on" in axes.get_title(loc="left")


def test_the_class_is_the_one_that_the_rank_counts(of_a_class: Acceptance) -> None:
    assert of_a_class.passes
    (ranked,) = {(each.runs, each.names) for each in of_a_class.comparisons if each.collective == "AllReduce"}
    found = judged.of_class(of_a_class, of_a_class.sizes[0])
    assert len({each.name for curves in found.values() for each in curves}) == ranked[0]
    assert set(found) == set(ranked[1])
    figure = judged.of_acceptance(of_a_class)
    thin = [line for line in figure.axes[0].lines if line.get_linewidth() == pytest.approx(0.8)]
    assert len(thin) == sum(map(len, found.values()))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert f"healthy public runs\nof the class ({ranked[0]})" in labels
    assert all(np.isfinite(line.get_ydata()).any() for line in thin)


@pytest.mark.parametrize(
    ("fails", "begins"),
    [("....", None), ("...x", 3), ("..xx", 2), (".x.x", 1), ("x..x", 3), ("xxx.", None), ("xx..", None)],
)
def test_where_a_loss_begins(in_a_node: Acceptance, fails: str, begins: int | None) -> None:
    good = next(each for each in in_a_node.sizes if not each.verdict.fails)
    bad = next(each for each in in_a_node.sizes if each.verdict.fails)
    sizes = [replace(bad if mark == "x" else good, bytes=1 << (20 + at)) for at, mark in enumerate(fails)]
    assert judged.slow_from(sizes) == (None if begins is None else 1 << (20 + begins))


def test_the_commands_draw_and_say_what_they_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    results, topology, none = (tmp_path / name for name in ("results.svg", "topology.png", "none.png"))
    run("diagnose", "all_reduce.log", "--machine", "dgx-h100", "--plot", str(results), code=1)
    assert "sizes that fail" in results.read_text("utf-8")
    plain = json.loads(run("diagnose", "guest.xml", "--json", code=1).stdout)
    assert plain == json.loads(run("diagnose", "guest.xml", "--json", "--plot", str(topology), code=1).stdout)
    assert topology.stat().st_size > 2000
    for words in (
        ["diagnose", "nccl.log"],
        ["diagnose", "all_reduce.log"],
        ["accept", "--floors", "--machine", "dgx-h100"],
    ):
        assert "--plot" in run(*words, "--plot", str(none), code=2).stderr
    assert "valid: .png, .svg, .pdf" in run("accept", "all_reduce.log", "--plot", "a.doc", code=2).stderr
    assert not none.exists()
