"""Control sequences of a stranger's file reach no terminal and no file raw, whatever reads and whatever prints them."""

import csv
import io
import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import COMMAND, run, run_to_any_end
from tuner.base import printable
from tuner.base.view import csv_lines

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
HARMLESS = "\x1b[2K\x9b7m\x07\u202ex"  # clears a line, inverts, rings, and turns letters around
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
WORD = re.compile(r"(?<=[\s\"'(,:=])([A-Za-z][\w.-]*[A-Za-z0-9])(?=[\s\"'),:]|$)")
COMMANDS = [
    ["diagnose", "{}"],
    ["diagnose", "{}", "--json"],
    ["log", "{}"],
    ["budget", "{}", "--machine", "dgx-h100"],
    ["budget", "{}", "--machine", "dgx-h100", "--csv"],
    ["accept", "{}", "--machine", "dgx-h100"],
    ["verify", "{}", "--machine", "dgx-h100"],
    ["pick", "allreduce", "--log", "{}"],
    ["plugin", "lint", "{}"],
    ["plugin", "stats", "{}"],
    ["machines", "{}"],
]


def in_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [in_json(each) for each in value]
    return f"{value}{HARMLESS}" if isinstance(value, str) else value


def planted(text: str) -> list[str]:
    """The text with the sequence in its texts: in all of a JSON document, else in every third word."""
    try:
        return [json.dumps(in_json(json.loads(text)), ensure_ascii=False)]
    except ValueError:
        words = [*WORD.finditer(text)]
        made = []
        for first in range(3):
            pieces, end = [], 0
            for word in words[first::3]:
                pieces += [text[end : word.end()], HARMLESS]
                end = word.end()
            made.append("".join([*pieces, text[end:]]))
        return made


KINDS = (".log", ".json", ".csv", ".table", ".xml", ".txt", ".prom")
FILES = sorted(path for path in EXAMPLES.glob("*.*") if path.suffix in KINDS and path.stat().st_size < 1 << 19)


def said(*words: str) -> str:
    """Everything that a command writes."""
    done = run_to_any_end(*words)
    return done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_no_reader_lets_a_control_sequence_through(file: Path, tmp_path: Path) -> None:
    for number, text in enumerate(planted(file.read_text(errors="replace"))):
        path = tmp_path / f"{number}-{file.name}"
        path.write_text(text)
        for words in COMMANDS:
            assert not RAW.search(shown := said(*(word.format(path) for word in words))), (words, shown)


def test_counts_of_jobs_and_their_metrics(tmp_path: Path) -> None:
    line = {
        "nccl_tuner_stats": 1, "host": HARMLESS, "pid": 1, "rank": 0, "ranks": 8, "nodes": 1,
        "table": f"/x/{HARMLESS}", "sha256": "0" * 64,
    }  # fmt: skip
    (tmp_path / "stats").write_text(json.dumps(line) + "\n")
    for more in ([], ["--json"]):
        done = subprocess.run(
            [COMMAND, "plugin", "stats", tmp_path / "stats", *more], capture_output=True, text=True, check=False
        )
        assert not RAW.search(done.stdout + done.stderr)
    assert printable.label('a"b\\c\nd\x1b') == 'a\\"b\\\\c\\nd\\u001b'


def test_a_cell_of_a_table_is_one_line() -> None:
    assert printable.in_a_line("a\nb\tc\x1b") == "a\\u000ab\\u0009c\\u001b"
    assert printable.printable("a\nb\tc\x1b\u2066ü ✓ 🙂 ─") == "a\nb\tc\\u001b\\u2066ü ✓ 🙂 ─"


def test_cells_of_csv_are_no_formulas() -> None:
    cells = ["=1+1", "+x", "-cmd|' /C calc'!A0", "@SUM(A1)", "-1.5", "+2e3", "-inf", "plain", -3, None, "=\x1b"]
    (_, row) = csv.reader(io.StringIO(csv_lines(["a"] * len(cells), [cells])))
    assert row == [
        "'=1+1", "'+x", "'-cmd|' /C calc'!A0", "'@SUM(A1)", "-1.5", "+2e3", "-inf", "plain", "-3", "", "'=\\u001b"
    ]  # fmt: skip


def test_own_styles_reach_a_terminal_and_no_others(tmp_path: Path) -> None:
    """A verdict is bold there; the name of the file, which the error tells, changes nothing."""
    path = tmp_path / f"{HARMLESS}.log"
    path.write_text(f"host{HARMLESS}:1:1 [0] NCCL INFO cudaDriverVersion 12040\n")
    controller, terminal = pty.openpty()
    with subprocess.Popen([COMMAND, "diagnose", path], stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        said = b""
        while piece := _read(controller):
            said += piece
        process.wait()
    text = said.decode().replace("\r\n", "\n")
    assert "\x1b[" in text
    styles = re.compile(r"\x1b\[(1|3[123];1|0)m")
    assert not RAW.search(styles.sub("", text))


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def test_an_error_tells_a_name_in_one_line(tmp_path: Path) -> None:
    done = run("diagnose", str(tmp_path / f"x{HARMLESS}"), code=2)
    assert not RAW.search(done.stderr.rstrip("\n"))


def test_a_picture_and_a_page_hold_no_control_sequence(tmp_path: Path) -> None:
    from tuner.answers import charts

    charts.save(_titled(f"a{HARMLESS}<script>"), tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert not RAW.search(text)
    assert "<script>" not in text


def _titled(title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.add_subplot().set_title(title)
    return figure
