"""Help: a short one that fits 80 columns and a screen, all of it with ``--help-all``."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.support.command_line import run
from tuner.cli import everything
from tuner.cli.command import SHORT, WIDTH


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(everything))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_a_terminal(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    command = ALL[path]
    shown = run(*path, "--help").stdout
    every = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    short = [each for each in every if getattr(each, "heading", None) is None]
    assert len(short) <= SHORT, "the options that few need go below a heading: options.under"
    assert not [line for line in shown.splitlines() if len(line) > WIDTH]
    lines = re.findall(r"^  (-[^\s,]+(?:(?:, | / )-\S+)*)", shown[shown.index("Options:") :], re.MULTILINE)
    described = {name for line in lines for name in re.split(r"[ ,/]+", line)}
    assert {each.opts[-1] for each in every} & described == {each.opts[-1] for each in short}
    if len(short) < len(every):
        whole = run(*path, "--help-all").stdout
        assert not [line for line in whole.splitlines() if len(line) > WIDTH]
        assert all(each.opts[-1] in whole for each in every)
        assert whole.startswith(shown[: shown.index("\n\n  ")])
    elif path:
        assert run(*path, "--help-all").stdout == shown


def test_examples_are_broken_as_a_shell_takes_them() -> None:
    shown = run("pick", "--help-all").stdout
    assert (
        "  nccl-tuner pick allgather --machine dgx-h100 --nccl 2.30.7 --buffers window \\\n      --windows receive\n"
        in shown
    )


def test_help_and_version_may_be_words() -> None:
    assert run("help").stdout == run("--help").stdout
    assert run("help", "plugin", "lint").stdout == run("plugin", "lint", "--help").stdout
    assert run("version").stdout == run("--version").stdout
    assert "no command 'helper'" in run("helper", code=2).stderr


def test_all_help_lists_commands_in_groups() -> None:
    leaves = {" ".join(path) for path, command in ALL.items() if not isinstance(command, click.Group)}
    assert leaves <= {line.strip().partition("  ")[0] for line in run("--help-all").stdout.splitlines()}


def test_check_takes_collectives_or_files() -> None:
    assert "unknown collective 'nothing'" in run("check", "nothing", code=2).stderr
    assert "AllReduce beside nothing.json: name either " in run("check", "allreduce", "nothing.json", code=2).stderr
    words = ("check", "nothing.json", "--machine", "dgx-h100")
    assert run(*words, code=2).stderr == "nccl-tuner: nothing.json: No such file or directory\n"
    said = run(*words, "--bytes", "1M", code=2).stderr
    assert said == "nccl-tuner: --bytes cannot be used with FILEs, which say what ran: remove it\n"
    said = run("check", *words[2:], "--tuner", "none", code=2).stderr
    assert "--tuner cannot be used with libnccl" in said
    assert "'plugin lint TABLE --libnccl'" in said
    assert "a number of ranks only applies to FILEs" in run("check", *words[2:], "--ranks", "4", code=2).stderr


def test_headings_are_bold_where_colour_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("--help").stdout
    assert "\x1b[" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1mWhat NCCL picks" in run("--help").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert run("--help").stdout == plain


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "stdin.xml"
    file.write_text((Path(__file__).parents[2] / "docs" / "examples" / "node.xml").read_text("utf-8"), "utf-8")
    monkeypatch.setattr("tuner.cli.command.STANDARD_INPUT", file)
    words = ("pick", "allreduce", "--nccl", "2.28.9", "--bytes", "1M", "--json")
    assert run(*words, "--topology", "-").stdout == run(*words, "--topology", str(file)).stdout


@pytest.mark.parametrize("name", ["DGX-H100", "dgx h100", "Dgx_H100"])
def test_a_machine_is_known_however_it_is_spelled(name: str) -> None:
    words = ("pick", "allreduce", "--nccl", "2.28.9", "--bytes", "1M", "--json", "--machine")
    assert run(*words, name).stdout == run(*words, "dgx-h100").stdout


def test_of_many_names_the_nearest_are_listed() -> None:
    said = run("pick", "allreduce", "--machine", "qqq", code=2).stderr
    assert said.count(",") == 4
    assert "more (all: nccl-tuner machines)" in said


@pytest.mark.parametrize("words", [("measure",), ("cost", "step"), ("budget",), ("fit", "constants")])
def test_help_has_no_words_of_its_library_for_numbers(words: tuple[str, ...]) -> None:
    shown = run(*words, "--help-all").stdout
    assert not re.search(r"INTEGER|FLOAT|RANGE\b|\d<=?x|x[<>]=?\d", shown)
    assert re.search(r"  --[a-z-]+ N ", shown)
