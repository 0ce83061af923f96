"""Writes tests/golden/launches.json.gz: what libnccl launches for some calls by every algorithm, in full.

python -m tests.scripts.record_launches                 every release
python -m tests.scripts.record_launches 2.32.3          one; what the file has of others stays
python -m tests.scripts.record_launches --edges         launches_at_edges.json.gz, of some releases
"""

import click

from tests.support import launch_records
from tests.support.random_launches import issued
from tuner import release
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle

COMMAND = "python -m tests.scripts.record_launches"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("edges", "--edges", is_flag=True)
def main(names: tuple[str, ...], edges: bool) -> None:
    file = launch_records.EDGES if edges else launch_records.FILE
    found = launch_records.load(file) if file.is_file() else {}
    recorded = found.get("releases", {})
    for name in names or (launch_records.RELEASES_AT_EDGES if edges else release.names()):
        recorded[name] = {
            "libnccl_sha256": release.load(name).library["cu12"]["x86_64"].sha256,
            "launches": {
                case.name: asked(case) for case in (launch_records.edges if edges else launch_records.cases)(name)
            },
        }
        click.echo(name, err=True)
    ordered = {name: recorded[name] for name in release.names() if name in recorded}
    launch_records.save({"written_by": f"{COMMAND} --edges" if edges else COMMAND, "releases": ordered}, file)


def asked(case: launch_records.Case) -> list[object]:
    """One launch after the other."""
    selection = Selection(case.scenario.communicator())
    with Oracle(case.scenario.oracle_configuration(), timeout_s=600) as oracle:
        launched = oracle.launch_groups_in_full([[issued(selection, operation)] for operation in case.operations])
    return list(map(launch_records.written, launched))


if __name__ == "__main__":
    main()
