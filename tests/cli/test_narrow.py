"""Tables at the width of a terminal: nothing is wider, nothing is lost; without a terminal they are as they were."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import run
from tuner.base.nouns import TimeInterval
from tuner.base.view import LEFT_OUT, NotedCell, columns_of, laid_out
from tuner.cli.output import print_table, say

ON = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")
COMMANDS = {
    "explain": ("explain", "allreduce", *ON, "--bytes", "1M"),
    "pick": ("pick", "allreduce", *ON, "--bytes", "1M,64M"),
    "edges": ("edges", *ON),
    "diff at sizes": ("diff", "allreduce", "nodes=4", *ON, "--bytes", "1M"),
    "diff": ("diff", *ON, "2.22.3"),
    "scale": ("edges", "--over", "nodes", "allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9", "--to-nodes", "16"),
}


def tables(text: str) -> list[str]:
    """The lines of tables, which begin with a space."""
    return [line for line in text.splitlines() if line.startswith(" ")]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_is_no_wider_than_the_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = tables(run(*COMMANDS[name]).stdout)
    assert max(map(len, narrow)) <= columns
    monkeypatch.setenv("COLUMNS", "1000")
    wide = tables(run(*COMMANDS[name]).stdout)
    words = [set(re.findall(r"[^\s─]+", " ".join(lines))) for lines in (narrow, wide)]
    left_out = [line for line in narrow if line.startswith(f" {LEFT_OUT}: ")]
    assert words[0] - {*f"{LEFT_OUT}:".split()} <= words[1] | {f"{word}," for word in words[1]}
    assert left_out or words[0] == words[1]
    assert columns < 80 or len(narrow) <= 3 * len(wide), "as rows, not as lists of columns"


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_terminal_a_table_has_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(map(len, tables(run(*COMMANDS[name]).stdout))) <= 80


@pytest.mark.parametrize(("columns", "together"), [(80, 1), (120, 2), (200, 3)])
def test_nccls_table_has_as_many_algorithms_in_a_line_as_fit(
    columns: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = run("table", *ON).stdout.splitlines()
    (first, *_) = [line for line in shown if line.startswith("  Algorithm ")]
    assert len(first.replace("|", " ").split()) == 1 + together
    assert max(map(len, shown)) <= columns
    cells = [cell for line in shown for cell in line.split("|")[1:] if "/" in cell]
    assert len(cells) == 5 * 7 * 3


def test_headings_of_graphs_are_words_with_units() -> None:
    (head,) = (line for line in run("graphs", *ON).stdout.splitlines() if line.startswith(" graph "))
    assert "_" not in head


def test_notes_of_cells_stand_below_their_table_once(capsys: pytest.CaptureFixture[str]) -> None:
    cell = NotedCell("1 to 2", "extrapolated: sizes")
    print_table("", ("file", "us"), [("a; extrapolated.csv", cell), ("b", cell)])
    shown = capsys.readouterr().out
    assert "a; extrapolated.csv   1 to 2 [1]" in shown
    assert shown.endswith("\n [1] extrapolated: sizes\n")


def test_a_note_is_left_out_with_its_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns, notes in (("80", 1), ("20", 0)):
        monkeypatch.setenv("COLUMNS", columns)
        row = "x" * 8, "y" * 8, NotedCell("1 to 2", "extrapolated: sizes")
        print_table("", ("one", "two", "us"), [row], spare=("us",))
        assert capsys.readouterr().out.count("extrapolated") == notes


def test_a_number_keeps_its_unit() -> None:
    shown = laid_out(("from", "says"), [("1234567 B", "a b c d e f")], 20)
    assert "1234567 B" in shown
    assert all(len(line) <= 20 for line in shown.splitlines())


def test_columns_are_left_out_the_spare_ones_first() -> None:
    cells = [("x" * 12, "y" * 12, "z" * 12)]
    shown = laid_out(("one", "two", "three"), cells, 30, spare=("two",)).splitlines()
    assert shown[1].split() == ["one", "three"]
    assert shown[-1] == f" {LEFT_OUT}: two"
    assert laid_out(("one", "two", "three"), cells, 30).splitlines()[1].split() == ["one", "two"]


def test_where_two_columns_do_not_fit_each_row_is_a_list() -> None:
    shown = laid_out(("one", "two", "three"), [("x" * 12, "y" * 12, "z" * 12)], 24)
    assert shown.splitlines()[1:4] == [f" one     {'x' * 12}", f" two     {'y' * 12}", f" three   {'z' * 12}"]


def test_edges_say_their_bytes_in_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run("edges", "allreduce", *ON).stdout.splitlines()
    (row,) = (line for line in lines if "1968826 B" in line)
    assert "1.88 MiB" in row


def test_every_option_has_help() -> None:
    import click

    from tests.support.command_line import subcommands
    from tuner.cli import everything

    without = [
        (command.name, option.opts)
        for command in subcommands(everything)
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert without == []


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("oracle", "run"), ("--constants ", "--ranks ")),
    ],
)
def test_options_that_are_always_refused_are_not_listed(words: tuple[str, ...], options: tuple[str, ...]) -> None:
    shown = run(*words, "--help-all").stdout
    assert [option for option in options if f"  {option}" in shown] == []
    assert "--machine" in shown


def test_the_file_to_write_has_one_name(tmp_path: Path) -> None:
    topology = Path(__file__).parents[2] / "docs" / "examples" / "skeleton.xml"
    words = ("machines", str(topology), "--gpu", "h100-sxm", "--nic-gbps", "400")
    done = run(*words, "--out", str(tmp_path / "x.xml"))
    assert done.stdout == f"wrote {tmp_path / 'x.xml'}\n"
    assert (tmp_path / "x.xml").read_text() == run(*words).stdout


def test_a_map_says_how_far_it_is() -> None:
    from tuner.answers.choices import choices
    from tuner.base.names import Collective, DataType, Op
    from tuner.emulator.request import Request
    from tuner.scenario import Scenario

    done: list[int] = []
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    sizes = np.array([8, 1 << 20], np.uint64)
    choices(Scenario("2.28.9", nodes=1, machine="dgx-h100"), request, sizes, (1, 2, 4), lambda: done.append(1))
    assert len(done) == 3


def test_the_axis_of_node_counts_is_logarithmic() -> None:
    pytest.importorskip("matplotlib")
    from tuner.answers.charts.parts import row_edges

    edges = row_edges(range(1, 65))
    assert (edges[8] - edges[0]) / (edges[-1] - edges[0]) > 0.4  # from 1 to 8 nodes; alike in height it was 12 %
    assert np.allclose(np.diff(row_edges((1, 2, 4, 8))), 1)


def test_headlines_and_notes_end_where_the_output_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = "word " * 40
    say(f"  {text}")
    print_table(text, ("of",), [(NotedCell("cell", text),)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).count("word") == 3 * 40
    assert lines[1].startswith("  word")


def test_columns_of_a_record_inside_a_row_are_empty_where_it_is_missing() -> None:
    columns = columns_of(TimeInterval, of=lambda row: row[0])
    assert [column.title for column in columns] == ["us", "from us", "to us"]
    assert [column.key for column in columns] == ["time_us", "low_us", "high_us"]
    there, missing = (TimeInterval(2.5, 2.0, 3.0),), (None,)
    assert [column.value(there) for column in columns] == [2.5, 2.0, 3.0]
    assert [column.value(missing) for column in columns] == [None] * 3


@pytest.mark.parametrize(("width", "gap"), [(25, 3), (24, 2), (23, 1)])
def test_the_widest_gap_that_fits_is_between_columns(width: int, gap: int) -> None:
    row = laid_out(("a", "b"), [("x" * 10, "y" * 11)], width).splitlines()[-1]
    assert row.rstrip() == f" {'x' * 10}{' ' * gap}{'y' * 11}"
