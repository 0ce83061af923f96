"""Our own search for channels against the live libnccl on random topologies, by group of releases: docs/random.toml.

    python -m tests.scripts.check_random --log LOG --seed a --until 2000    2,000 topologies for each group
    python -m tests.scripts.check_random --log LOG --again                  those of the log that were not equal

The releases take turns, and a number of a seed is always the same topology. What is in the log is not asked again, so a
run that was ended goes on where it was. Of every tenth topology all nodes are initialised, and the numbers in NCCL's
memory are compared, too; of the others rank 0's file of graphs.
"""

import hashlib
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tests.scripts.check_graphs import Case, difference
from tests.support.random_topologies import Drawn, drawn
from tests.support.searches import Searches
from tuner import release
from tuner.base.errors import OracleFailed, TunerError
from tuner.base.names import PATHS_WITHOUT_WORD
from tuner.graphs import graph_file
from tuner.graphs.graphs import search
from tuner.machine.graphs import release_key
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

FILE = Path(__file__).parents[2] / "docs" / "random.toml"
FIRST_OF_GROUPS = ("2.18", "2.19", "2.22", "2.25", "2.27", "2.30")
EQUAL, REFUSED, DIFFERS = "equal", "refused by both", "differs"
WHOLE = 10  # every so many topologies all nodes are initialised
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Compared:
    """One topology; ``why`` it is not equal, and the sha256 of what libnccl wrote."""

    seed: str
    release: str
    result: str
    why: str = ""
    sha256: str = ""


@click.command()
@click.option("--log", type=click.Path(path_type=Path), required=True, help="Results so far, one a line.")
@click.option("--seed", default="", help="Other topologies.")
@click.option("--until", default=0, help="Compare up to so many of each group.")
@click.option("--again", is_flag=True, help="Compare those again that were not equal.")
def main(log: Path, seed: str, until: int, again: bool) -> None:
    known = read(log)
    libraries = dict[str, Searches]()
    differing = [(each.release, name) for name, each in known.items() if each.result == DIFFERS]
    for nccl, name in differing if again else missing(known, seed, until):
        found = known[name] = compared(nccl, name, libraries)
        with log.open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")
        if found.result == DIFFERS:
            click.echo(f"DIFFERS {nccl} seed {name}: {found.why}")
    write(known)
    sys.exit(1 if any(each.result == DIFFERS for each in known.values()) else 0)


def groups() -> list[list[str]]:
    """The releases of each group, oldest first."""
    starts = [release_key(f"{first}.0") for first in FIRST_OF_GROUPS]
    members: list[list[str]] = [[] for _ in starts]
    for name in release.names():
        members[sum(start <= release_key(name) for start in starts) - 1].append(name)
    return members


def missing(known: dict[str, Compared], seed: str, until: int) -> Iterator[tuple[str, str]]:
    """A release and a topology after the other, of a group after the other, up to ``until`` of each."""
    members = groups()
    for number in count():
        group, name = members[number % len(members)], f"{seed}{number}"
        done = Counter(each.release for each in known.values() if each.result != REFUSED)
        if all(sum(done[nccl] for nccl in each) >= until for each in members):
            return
        if name not in known and sum(done[nccl] for nccl in group) < until:
            yield group[number // len(members) % len(group)], name


def compared(nccl: str, name: str, libraries: dict[str, Searches]) -> Compared:
    """What comes out of one topology."""
    node = drawn(name)
    asked = node.oracle_configuration(nccl)
    case = Case("random", name, asked)
    if nccl not in libraries:
        libraries[nccl] = Searches(asked)
    ours, refused = None, ""
    try:
        result = search(case.request, nccl)
        ours = graph_file.text(result.graphs, release.load(nccl).search.dump)
    except TunerError as error:
        refused = str(error)
    except (LookupError, ValueError, ArithmeticError, StopIteration, RecursionError) as error:
        return Compared(name, nccl, DIFFERS, f"crashed here: {error!r}")
    try:
        theirs = _of_libnccl(asked, ours, libraries[nccl])
    except OracleFailed as error:
        refused = refused or _refused_communicator(nccl, node, ours or "")
        if refused:
            return Compared(name, nccl, REFUSED, refused)
        return Compared(name, nccl, DIFFERS, f"libnccl failed: {error}")
    if ours is None:
        return Compared(name, nccl, DIFFERS, f"refused here alone: {refused}")
    sha256 = hashlib.sha256(theirs.encode()).hexdigest()
    writable = _writable(ours)
    if writable != theirs:
        return Compared(name, nccl, DIFFERS, _first_difference(writable, theirs), sha256)
    whole = sum(map(ord, name)) % WHOLE == 0 or writable != ours
    why = difference(case) if whole else None
    return Compared(name, nccl, EQUAL if why is None else DIFFERS, why or "", sha256)


def _writable(graphs: str) -> str:
    """The file as libnccl is made to write it: LOC for types that it has no word for."""
    return re.sub(rf'(type\w+)="({"|".join(PATHS_WITHOUT_WORD)})"', r'\1="LOC"', graphs)


def _of_libnccl(asked: OracleConfiguration, ours: str | None, cheap: Searches) -> str:
    """The file that rank 0 writes: of whole nodes where the cheap way fails or has another one than ours.

    The other node has one GPU there: where its rank is the first to ask NVML, the pairs of GPUs are that node's.
    """
    try:
        theirs = cheap.graph_xml(asked, TIMEOUT_S)
        if ours is None or _writable(ours) == theirs:
            return theirs
    except OracleFailed:
        if ours is None:
            raise
    with Oracle(asked, timeout_s=TIMEOUT_S) as oracle:
        return oracle.graph_xml() or ""


def _refused_communicator(nccl: str, node: Drawn, graphs: str) -> str:
    """Why there is no communicator though there are graphs; empty where there is one."""
    searched = release.load(nccl).search_variables  # their effect is in the graphs
    others = {name: value for name, value in node.environment.items() if name not in searched - {"NCCL_COLLNET_ENABLE"}}
    with TemporaryDirectory() as folder:
        topology_file, graph_file = Path(folder) / "node.xml", Path(folder) / "graphs.xml"
        topology_file.write_text(node.xml)
        graph_file.write_text(graphs)
        try:
            Scenario(
                nccl,
                node.nodes,
                topology=topology_file,
                graphs=graph_file,
                gpus_per_node=node.gpus,
                environment=others,
                collnet=True,
            ).communicator()
        except TunerError as error:
            return str(error)
    return ""


def _first_difference(ours: str, theirs: str) -> str:
    graph = ""
    for own, other in zip(ours.splitlines(), theirs.splitlines(), strict=False):
        graph = own if "<graph " in own else graph
        if own != other:
            return f"{own.strip()} here, {other.strip()} in libnccl, in {graph.strip()}"
    return "one file of graphs is longer"


def read(log: Path) -> dict[str, Compared]:
    """The last result of each topology."""
    lines = log.read_text().splitlines() if log.is_file() else []
    found = [Compared(**json.loads(line)) for line in lines]
    return {each.seed: each for each in found}


def write(known: dict[str, Compared]) -> None:
    """Replaces the file."""
    lines = ["# Autogenerated by tests/scripts/check_random.py; do not edit. Random topologies against libnccl."]
    for members in groups():
        of_group = [each for each in known.values() if each.release in members]
        results = Counter(each.result for each in of_group)
        lines += [
            "",
            "[[group]]",
            f"releases = {json.dumps(members)}",
            f"compared = {results[EQUAL] + results[DIFFERS]}",
            f"equal = {results[EQUAL]}",
            f"refused_by_both = {results[REFUSED]}",
        ]
        for each in of_group:
            if each.result == DIFFERS:
                lines += ["", "[[group.differs]]"]
                lines += [f"{key} = {json.dumps(getattr(each, key))}" for key in ("seed", "release", "why")]
    FILE.write_text("\n".join(lines) + "\n")


def summary() -> list[dict[str, Any]]:
    """What the file says of each group of releases, oldest first."""
    found: list[dict[str, Any]] = tomllib.loads(FILE.read_text())["group"] if FILE.is_file() else []
    return found


if __name__ == "__main__":
    main()
