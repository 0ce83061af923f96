"""``nccl-tuner doctor``: what of nccl-tuner is installed here, and what is missing."""

from typing import TYPE_CHECKING

import click

from tuner.cli import options
from tuner.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from tuner.cli.installation import CachedLibrary


@click.command(name="doctor", cls=options.Command)
@options.json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Says what of nccl-tuner is installed on this computer, which extras are missing, which libnccl it has.

    It looks at the installation alone; 'nccl-tuner machines diagnose FILE' says what is wrong with a topology.
    Exit code 1: something that is installed does not work. An extra that is missing is no fault.

    \b
    nccl-tuner doctor
    nccl-tuner doctor --json
    """
    from tuner.cli.installation import inspect

    found = inspect()
    if as_json:
        print_json(found)
        ctx.exit(0 if found.works else 1)
    say(f"nccl-tuner {found.version} in {found.folder}, Python {found.python}, {found.platform}\n")
    print_table("Parts", ("part", "state"), [(part.name, part.state) for part in found.parts])
    extras = [(each.name, ", ".join(each.missing) or "installed", each.gives) for each in found.extras]
    print_table("Extras", ("extra", "missing", "gives"), extras)
    libraries = [*map(_row, found.installed_nccl), *map(_row, found.cached)]
    if libraries:
        print_table("libnccl", ("release", "build", "MB", "file"), libraries)
    else:
        say(f"libnccl: none, neither as a package nor in {found.cache}")
    mend = [f"{part.name}: {part.mend}" for part in found.parts if part.mend and not part.works]
    mend += [f"{each.gives}: {each.install}" for each in found.extras if each.missing]
    mend += [] if libraries else ["a libnccl: nccl-tuner fetch-nccl 2.28.9 (with --from DIR: from wheels in a folder)"]
    say("\nTo mend" if mend else "\nNothing is missing.")
    for line in mend:
        say(f"  {line}")
    ctx.exit(0 if found.works else 1)


def _row(library: "CachedLibrary") -> tuple[str, str, str, str]:
    return library.release, library.build, f"{library.bytes / 1e6:.0f}", str(library.path)
