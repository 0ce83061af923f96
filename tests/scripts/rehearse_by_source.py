"""What a release by source alone would have been worth: ``python -m tests.scripts.rehearse_by_source 2.31.2``.

Of the release's file only what names a source file of NVIDIA/nccl is kept, not what was read from the binary; the rest
is its parent's. That is compared with the release's own libnccl, and what was missed is counted.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tuner import release
from tuner.base import tables
from tuner.base.errors import TunerError
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, compare_cells, compare_picks, compare_tables, sizes_bytes
from tuner.oracle.conformance.mismatches import Comparing
from tuner.release import learnt
from tuner.scenario import Scenario

BINARY = ("from the binary", "libnccl.so.2 of the wheel", "beside libnccl.so.2")
SHAPES = ((1, None), (2, None), (4, 2), (3, 1))
MOST_RANKS = 16


def by_source_alone(text: str) -> tuple[str, list[str]]:
    """The file without what was read from the binary, and the keys that this leaves out."""
    kept, left_out, table, binary, depth, skipping = [], [], "", False, 0, False
    for line in text.splitlines():
        code, _, comment = line.partition("#")
        if depth == 0 and line.startswith("["):
            table, binary = code.strip().strip("[]"), any(each in comment for each in BINARY)
        elif depth == 0 and "=" in code:
            own = any(each in comment for each in BINARY)
            skipping = own or (binary and "src/" not in comment) or table.startswith("library")
            if skipping and not table.startswith("library"):
                left_out.append(f"{table}.{code.partition('=')[0].strip()}".removeprefix("."))
        if not skipping or (depth == 0 and line.startswith("[")):
            kept.append(line)
        depth += code.count("[") + code.count("{") - code.count("]") - code.count("}") if "=" in code or depth else 0
        skipping = skipping and depth > 0
    return "\n".join(kept) + "\n", left_out


def scenarios(nccl: str) -> Iterator[Scenario]:
    """Machines of the catalogue on one node and several, of at most sixteen ranks."""
    for name in catalogue.names():
        machine = catalogue.load(name)
        for nodes, gpus in SHAPES:
            count = gpus or machine.gpus_per_node
            if machine.trays or count > machine.gpus_per_node or not 1 < nodes * count <= MOST_RANKS:
                continue
            yield Scenario(nccl, nodes, machine=name, gpus_per_node=gpus)


def main() -> None:
    name = sys.argv[1]
    folder = tables.folder() / "nccl"
    text, left_out = by_source_alone((folder / f"{name}.toml").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as made:
        for file in folder.glob("*.toml"):
            (Path(made) / file.name).write_text(file.read_text("utf-8"), "utf-8")
        (Path(made) / f"{name}.toml").write_text(text, "utf-8")
        nccl = replace(release.read(Path(made), name), name=f"{name}{learnt.AT}source")
    compared, equal, missed, refused = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    with learnt.trying(nccl) as trial:
        for real in scenarios(name):
            comparing = Comparing()
            try:
                selection = Selection(replace(real, nccl=trial).communicator())
                with Oracle(real.oracle_configuration(), timeout_s=300) as oracle:
                    compare_tables(comparing, selection, oracle.tables, oracle.facts)
                    for request in ALL_COLLECTIVES:
                        sizes = sizes_bytes(request, selection.communicator.ranks)
                        compare_cells(comparing, selection, oracle, request, sizes)
                        compare_picks(comparing, selection, oracle, request, sizes)
            except TunerError as error:
                refused[str(error).splitlines()[0][:100]] += 1
                continue
            report = comparing.report(real.title)
            wrong = Counter(each.what for each in report.mismatches)
            for what, count in report.compared.items():
                compared[what] += count
                equal[what] += count - wrong[what]
            if report.mismatches:
                missed[f"{real.title}: {', '.join(f'{count} {what}' for what, count in wrong.items())}"] += 1
    print(f"NCCL {name} by source alone, from {nccl.files[1].table['release']}, against its libnccl:")
    for what, count in compared.items():
        if count:
            print(f"  {what}: {equal[what]:,} of {count:,} equal")
    print(f"left out, as only the binary says it: {', '.join(left_out)}")
    print("missed:", *missed or ["nothing"], sep="\n  ")
    print("not compared:", *(f"{count} x {why}" for why, count in refused.items()), sep="\n  ")


if __name__ == "__main__":
    main()
