"""Options with numbers that no quantity has, and communicators too large to be written out."""

from pathlib import Path

import click
import pytest

from tests.support.command_line import run, subcommands
from tuner.base.errors import TunerError
from tuner.cli import everything
from tuner.cli.command import Command

ORDER = ("order", "allreduce", "--machine", "dgx-h100", "--bytes", "64K")
EXPORT = ("export", "allreduce", "--format", "csv", "--machine", "dgx-h100", "--bytes", "1M")
KINDS = {"integer", "integer range", "float", "float range", "number", "numbers", "count", "percent", "size", "sizes"}
NUMBERS = [
    (command, each)
    for command in subcommands(everything)
    for each in command.params
    if each.type.name in KINDS | {"ranks", "range", "size_bytes", "compute capabilities", "channels", "parts"}
]


@pytest.mark.parametrize(
    "value",
    ["nan", "-nan", "inf", "-inf", "1e400", "9" * 400, "-" + "9" * 400, "9" * 5000],
    ids=lambda value: value[:6],
)
def test_no_option_of_any_command_takes_a_number_without_an_end(value: str) -> None:
    """By its type, or before the command runs, which has this option alone here."""
    taken = []
    for command, param in NUMBERS:
        context = click.Context(Command("asked", params=[param], callback=lambda **_: None))
        try:
            context.params[param.name or ""] = param.type(value, param, context)
            context.command.invoke(context)
            taken.append((command.name, param.opts))
        except (click.UsageError, TunerError):
            pass
    assert not taken
    assert len(NUMBERS) > 300


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "0", "1e300"])
def test_a_time_limit_is_a_time(value: str) -> None:
    words = ("pick", "allreduce", "--machine", "dgx-h100", "--bytes", "1M", "--libnccl", "--timeout", value)
    assert "--timeout" in run(*words, code=2).stderr


@pytest.mark.parametrize(("option", "value"), [("--precision", "nan"), ("--budget-s", "nan"), ("--budget-s", "inf")])
def test_measuring_takes_no_number_without_an_end(option: str, value: str, tmp_path: object) -> None:
    words = ("measure", "--backend", "simulated", "--machine", "dgx-h100", "--out", f"{tmp_path}/x", option, value)
    assert option in run(*words, code=2).stderr


def test_a_whole_number_of_400_digits_is_called_too_large() -> None:
    words = ("cost", "ideal", "--intra-gbs", "450", "--inter-gbs", "100", "--gpus-per-node", "8")
    assert (
        "has a value that is not possible: too large, or not a number"
        in run(*words, "--nodes", f"2,{'9' * 400}", code=2).stderr
    )
    assert "not whole numbers" in run(*words, "--nodes", "2,2.5", code=2).stderr


def test_what_is_too_large_is_said_at_once() -> None:
    assert "up to 65,536 ranks" in run(*ORDER, "--nodes", "1048576", code=2).stderr
    assert "up to 16,384 ranks" in run(*EXPORT, "--nodes", "100000", code=2).stderr


def test_a_topology_of_more_adapters_than_nccl_takes_is_refused(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "examples" / "node.xml").read_text("utf-8")
    net = next(line for line in text.splitlines() if "<net " in line)
    (tmp_path / "x.xml").write_text(text.replace(net, net * 1000, 1), "utf-8")
    words = ("pick", "allreduce", "--topology", str(tmp_path / "x.xml"), "--nodes", "2", "--bytes", "1M")
    assert "more than 640 adapters" in run(*words, code=2).stderr
