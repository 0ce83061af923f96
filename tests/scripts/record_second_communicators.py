"""Writes tables/second_communicators.toml: what each release's libnccl does with a variable that a process sets between
two communicators, found out on simulated GPUs (tests.support.second_communicators).

    python -m tests.scripts.record_second_communicators [RELEASE...]        all, or some: the others stay

Takes about a minute of a processor a release.
"""

import sys
import tomllib
from pathlib import Path

from tests.support.second_communicators import TRIED, readings
from tuner import release

FILE = Path(__file__).parents[2] / "tables" / "second_communicators.toml"
ABSENT, UNSEEN = "none", "unseen"
HEAD = """\
# When a process reads a variable: at each communicator ("each"), or once ("once"), from the libnccl of these releases
# (wheels nvidia-nccl-cu12) on simulated GPUs, written by `python -m tests.scripts.record_second_communicators`. One of
# these releases has what the newest line up to it says. "neither": in part. "unseen": no value tried had an effect.
# "none": the release does not have the variable.
"""


def main() -> None:
    names = sys.argv[1:] or release.names()
    found = known() if FILE.is_file() else {}
    for name in names:
        asked = readings(name)
        for variable in TRIED:
            here = asked.get(variable)
            found.setdefault(variable, {})[name] = ABSENT if here is None else here.when or UNSEEN
        print(name, flush=True)
        FILE.write_text(HEAD + written(found))


def written(found: dict[str, dict[str, str]]) -> str:
    """The releases that were asked, and for each variable those of them at which what is said of it changes."""
    asked = [name for name in release.names() if any(name in said for said in found.values())]
    text = "releases = [\n" + "".join(f'    "{name}",\n' for name in asked) + "]\n"
    for variable, said in sorted(found.items()):
        before, lines = ABSENT, []
        for name in asked:
            if said.get(name, before) != before:
                before = said[name]
                lines.append(f'"{name}" = "{before}"\n')
        text += f"\n[{variable}]\n{''.join(lines)}" if lines else ""
    return text


def known() -> dict[str, dict[str, str]]:
    """What the file says, by variable and release that was asked."""
    table = tomllib.loads(FILE.read_text())
    found: dict[str, dict[str, str]] = {}
    for name in table.pop("releases"):
        for variable, lines in table.items():
            upto = [each for each in release.names()[: release.names().index(name) + 1] if each in lines]
            found.setdefault(variable, {})[name] = lines[upto[-1]] if upto else ABSENT
    return found


if __name__ == "__main__":
    main()
