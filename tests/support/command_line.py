"""The command line: in this process, which has everything loaded already, or in one of its own, as a user runs it."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import click
import pytest

from tuner import cli

# The checkout whose command, of its .venv, and whose recipes are run: another one shows what it lacked.
OTHER_BUILD = os.environ.get("NCCL_TUNER_TEST_BUILD")
TREE = Path(OTHER_BUILD or Path(__file__).parents[2])
PYTHON = TREE / ".venv" / "bin" / "python" if OTHER_BUILD else Path(sys.executable)
COMMAND = PYTHON.with_name("nccl-tuner")


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """In this process. An exception that the command line does not handle is raised."""
    done = run_to_any_end(*arguments)
    assert done.returncode == code, done.stderr
    return done


def run_to_any_end(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As :func:`run`, whatever its exit code is; another build in a process of its own."""
    if OTHER_BUILD:
        return run_process(*arguments, code=None)
    output, errors = io.StringIO(), io.StringIO()
    words = [COMMAND.name, *arguments]
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        patch.object(sys, "argv", words),
        patch.object(sys.modules["__main__"], "__package__", None),  # else click prints "python -m pytest"
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    return subprocess.CompletedProcess(words, int(end.value.code or 0), output.getvalue(), errors.getvalue())


def assert_refused(arguments: tuple[str, ...], hint: str, code: int = 2) -> None:
    """One line with ``hint``, and perhaps a command to try in its place, which tests/cli/test_remedies.py tries."""
    done = run(*arguments, code=code)
    assert done.stdout == ""
    message, *instead = done.stderr.splitlines()
    assert hint in message
    assert [line.startswith("try: nccl-tuner ") for line in instead] in ([], [True])


def run_process(
    *arguments: str,
    code: int | None = 0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    memory_mb: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, with more variables and at most so much memory; ``code`` None: any but a signal's."""

    def bounded() -> None:
        import resource  # not on Windows

        most = (memory_mb or 0) << 20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    # What Python knows of the environment: readline, which pytest imports, puts COLUMNS beside it.
    done = subprocess.run(
        [COMMAND, *arguments], cwd=cwd, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", timeout=300, check=False,
        preexec_fn=None if memory_mb is None else bounded,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr[-1000:]
    assert done.returncode == code if code is not None else done.returncode >= 0, done.stderr[-1000:]
    return done


def subcommands(group: click.Group) -> Iterator[click.Command]:
    """Every command of a group and of its groups."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from subcommands(command)
        else:
            yield command
