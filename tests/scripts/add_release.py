"""`make release NCCL=2.33.1`: everything about a release of NCCL that is not written by hand.

Where tables/nccl has no file of the release yet, it is learnt from its libnccl: the nearest release is its parent, it
has what was read or found by trial, and the names of its variables go into tables/variables.toml. Then the graphs of
every machine are searched, here and by libnccl, libnccl answers what the golden tests hold the emulator against, and
emulator and libnccl are compared. Where they differ, what changed in this release goes into its file by hand; the same
command again searches and compares. What libnccl answered is kept.

    python -m tests.scripts.add_release 2.33.1
    python -m tests.scripts.add_release 2.33.1 --machine dgx-h100      these machines alone
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tests.support import captured_graphs
from tuner import release
from tuner.base.errors import OracleUnavailable
from tuner.cli.oracle import print_learning
from tuner.machine import catalogue
from tuner.oracle import library
from tuner.oracle.conformance.learn import learn
from tuner.oracle.symbols import opened
from tuner.release import learnt
from tuner.release.variables import in_library

FOLDER = Path(__file__).parents[2] / "tables" / "nccl"
VARIABLES = FOLDER.parent / "variables.toml"
OF_OTHER_TEXTS = {"NCCL_IPC_USE_ABSTRACT_SOCKET"}  # the end of one, in some
# A constant of bytes without an end may stand before it, such as "00000000:00:00.0" in 2.31.2.
_VARIABLE = re.compile(rb"(?<![a-z_])(NCCL_[A-Z0-9_]*[A-Z0-9])\0")  # code may stand right before a text
BEGUN = """\
# NCCL {name}: what differs from {parent}. Sources are files of the tag v{name}-1 of NVIDIA/nccl.

release = "{name}"
parent = "{parent}"
"""
LIBRARY = """
[library.{build}]                             # libnccl.so.2 of the wheel {wheel} {name}
x86_64.sha256 = "{sha256}"
x86_64.bytes = {bytes}
"""


@click.command()
@click.argument("name", metavar="RELEASE")
@click.option("--machine", "machines", multiple=True, type=click.Choice(catalogue.names()), help="[default: all]")
def main(name: str, machines: Sequence[str]) -> None:
    if name not in release.names():
        begin(name)
        # The list of releases was read when this began.
        again = [sys.executable, "-m", "tests.scripts.add_release", *sys.argv[1:]]
        sys.exit(subprocess.run(again, check=False).returncode)
    chosen = [word for machine in machines for word in ("--machine", machine)]
    command = Path(sys.executable).with_name("nccl-tuner")
    run(command, "fetch-nccl", name)
    search = sys.executable, "-m", "tests.scripts.search_graphs"
    for machine in machines or catalogue.names():
        run(*search, machine, "--nccl", name)  # again: by what its file says now
        if machine in captured_graphs.names() and name not in captured_graphs.of(machine).libnccl_sha256:
            file = captured_graphs.FOLDER / f"{machine}.toml"
            run(*search, "--libnccl", machine, "--nccl", name, "-o", file)
    run(sys.executable, "-m", "tests.scripts.record_golden", "--nccl", name, *chosen)
    run(sys.executable, "-m", "tests.scripts.record_launches", name)
    run(sys.executable, "-m", "tests.scripts.record_defaults")
    tests = " or ".join(f"{name}-{each}" for each in machines) or name
    os.environ["NCCL_TUNER_TEST_RELEASES"] = "all"
    run(sys.executable, "-m", "pytest", "-q", "tests/golden", "-k", tests)
    if not machines:
        planned = f"tests/live/test_releases.py::test_planned_communicators[{name}]"
        run(sys.executable, "-m", "pytest", "-n", "0", "-q", planned, "--record")
        run(sys.executable, "-m", "tests.scripts.write_docs")


def begin(name: str) -> None:
    """A file of a release with what is learnt from its library; what is still different is shown."""
    text = ""
    for build, wheel in library.WHEELS.items():
        try:
            found = library.fetch(name, say, build)
        except OracleUnavailable as error:
            if build == library.BUILD:
                raise
            say(f"no library of {wheel}: {error}")
            continue
        if build == library.BUILD:
            learning = learn(found.path, progress=say)
        text += LIBRARY.format(
            name=name, build=build, wheel=wheel, sha256=found.sha256, bytes=found.path.stat().st_size
        )
    (FOLDER / f"{name}.toml").write_text(
        BEGUN.format(name=name, parent=learning.parent) + text + learnt.tables_of(learning.changes)
    )
    with VARIABLES.open("a") as file:
        file.write(variables_of(name, variables_in(library.cached(name)) | OF_OTHER_TEXTS))
    print_learning(learning)
    say(f"wrote {FOLDER / name}.toml and the names of variables; what still differs goes into the file by hand")


def variables_in(path: Path) -> frozenset[str]:
    """Names like those of NCCL's variables among the texts of a libnccl, which has those of types elsewhere."""
    with opened(path) as elf:
        texts = elf.get_section_by_name(".rodata")
        return frozenset(name.decode() for name in _VARIABLE.findall(texts.data() if texts else b""))


def variables_of(name: str, found: frozenset[str]) -> str:
    """The table of tables/variables.toml for a release whose libnccl has these names."""
    before = in_library(release.names()[-1])
    new, gone = sorted(found - before), sorted(before - found)
    lines = [f"{key} = {json.dumps(names)}" for key, names in (("new", new), ("gone", gone)) if names]
    return "\n".join(["", f'["{name}"]', *lines, ""])


def say(text: str) -> None:
    click.echo(text, err=True)


def run(*command: str | Path) -> None:
    click.echo(f"$ {' '.join(map(str, command))}")
    if code := subprocess.run(command, check=False).returncode:
        click.echo(f"exit code {code}: what this release changes goes into {FOLDER}, then the same command again")
        sys.exit(code)


if __name__ == "__main__":
    main()
