"""Answers questions about a pasted file: what it is, whether it is normal, and what NCCL would pick.

The page of the site for trying runs this in the browser, where no process can be started.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.cli.tools import VERDICTS, answered

SIZES = "8,64K,1M,16M,256M,1G"
PICKS = {  # by the kind of a file: what describes the communicator whose picks are shown
    "topology": "file",
    "results of nccl-tests": "machine",
    "log of NCCL": "machine",
    "listing of a node": "machine",
    "variables of a job": "machine",
}
OWN_ANSWER = frozenset({"diagnose"})  # which was given already


@dataclass(frozen=True, slots=True)
class PastedAnswer:
    """A command and its output. ``title`` is the question; ``verdict`` depends on the exit code ("" for bad input)."""

    title: str
    words: Sequence[str]
    exit_code: int
    output: str
    errors: str

    @property
    def verdict(self) -> str:
        """The verdict that the exit code stands for."""
        return VERDICTS.get(self.exit_code, "")

    @property
    def command(self) -> str:
        """The command line, for a shell."""
        return shlex.join(["nccl-tuner", *self.words])


def answers(files: Sequence[str], machine: str = "", nodes: str = "") -> Iterator[PastedAnswer]:
    """Answers about files in the current folder, one after the other; ``machine`` and ``nodes`` are given if they are
    known."""
    known = [*(["--machine", machine] if machine else []), *(["--nodes", nodes] if nodes else [])]
    first = ["diagnose", *files, *known]
    yield _answer("What is it, and is anything wrong?", first)
    _, output, _ = answered([*first, "--json"])
    found = json.loads(output)["files"] if output.strip() else []
    for each in found:
        of = f" ({each['file']})" if len(found) > 1 else ""
        more = shlex.split(each["command"] or "")[1:]
        if more and more[0] not in OWN_ANSWER and "NAME" not in more and "MODEL" not in more:
            title = "Is it as fast as it should be?" if more[0] == "accept" else "What else it says"
            yield _answer(title + of, more)
        if (words := _pick(each, machine, nodes)) is not None:
            yield _answer(f"What would NCCL pick?{of}", words)


def _pick(found: dict[str, Any], machine: str, nodes: str) -> list[str] | None:
    """The command that shows the picks; None if neither the user nor the file names the machine."""
    described = PICKS.get(found["kind"])
    name = machine or found["machine"]
    if described is None or (described == "machine" and not name):
        return None
    where = ["--topology", found["file"]] if described == "file" else ["--machine", name]
    if count := nodes or found["nodes"]:
        where += ["--nodes", str(count)]
    if found["nccl"]:
        where += ["--nccl", found["nccl"]]
    return ["pick", "allreduce", *where, "--bytes", SIZES]


def _answer(title: str, words: Sequence[str]) -> PastedAnswer:
    return PastedAnswer(title, words, *answered(words))
