"""Graphs of a machine of the catalogue for every number of its GPUs, kept in its folder, so that answers are fast.

Needs no libnccl. What was searched before is remembered, so that it goes on where it was interrupted. With --libnccl
libnccl searches them, into a file that the golden tests compare with.

    python -m tests.scripts.search_graphs dgx-h100 --all
    python -m tests.scripts.search_graphs dgx-h100 --all --libnccl -o tests/golden/graphs/dgx-h100.toml
"""

from pathlib import Path

import click

from tuner.base.files import check_writable, write_text
from tuner.graphs import cached
from tuner.machine import catalogue, graphs
from tuner.oracle.conformance.capture import capture


@click.command()
@click.argument("name")
@click.option("--nccl", "releases", multiple=True, metavar="RELEASE", help="Release that searches; may be repeated.")
@click.option("--all", "every", is_flag=True, help="All releases that run there.")
@click.option("--libnccl", is_flag=True, help="Have libnccl search them, to compare with; into a file of its own.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The file of --libnccl; releases that it has stay.")
def main(name: str, releases: tuple[str, ...], every: bool, libnccl: bool, out: Path | None) -> None:
    if every == bool(releases):
        raise click.UsageError("which releases? valid: --all, or --nccl RELEASE")
    if libnccl != (out is not None):
        raise click.UsageError("--libnccl and --out: one of them; valid: both, or none for the machine's folder")
    machine = catalogue.load(name)
    names = machine.releases if every else releases
    if out is not None:
        check_writable(out)
        for nccl in names:
            print(f"{name}, NCCL {nccl}", flush=True)
            capture(name, nccl, out)
    else:
        out = Path(str(catalogue.folder())) / machine.name / catalogue.GRAPHS_FILE
        write_text(out, graphs.to_json(cached.find_all(machine, names)))
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
