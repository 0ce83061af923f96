"""``nccl-tuner fetch-nccl``: real libraries for the oracle."""

from pathlib import Path

import click

from tuner import release
from tuner.base.errors import BadInput, one_of
from tuner.cli import options
from tuner.cli.output import print_json
from tuner.cli.release_names import ReleaseName
from tuner.oracle import library


@click.command(name="fetch-nccl", cls=options.Command)
@click.argument("releases", nargs=-1, type=ReleaseName(only_known=False), metavar="[RELEASES]...")
@click.option("--all", "every", is_flag=True, help="Every release with a table and such a build.")
@click.option(
    "--build",
    "builds",
    type=click.Choice(tuple(library.WHEELS)),
    multiple=True,
    default=(library.BUILD,),
    show_default=True,
    help="For CUDA 12 or CUDA 13: of the wheel nvidia-nccl-cu12 or nvidia-nccl-cu13; repeatable.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Take the wheels from this folder; nothing is downloaded.",
)
@options.json_option
def command(
    releases: tuple[str, ...], every: bool, builds: tuple[str, ...], source: Path | None, as_json: bool
) -> None:
    """Fetches libnccl of RELEASES with pip into the cache (NCCL_TUNER_CACHE); only the .so is kept.

    What is there already is not fetched again, so a call that was interrupted can be repeated.

    \b
    nccl-tuner fetch-nccl 2.18.1 2.28.9
    nccl-tuner fetch-nccl --all
    nccl-tuner fetch-nccl 2.28.9 --build cu13
    nccl-tuner fetch-nccl 2.28.9 --from /media/wheels
    """
    if every == bool(releases):
        raise BadInput(f"name releases, or all of them with --all; {one_of(release.names())}")
    fetched = []
    for build in dict.fromkeys(builds):
        wanted = releases or library.with_build(build)
        for wheel in library.fetch_all(wanted, lambda message: click.echo(message, err=True), build, source):
            row = {"release": wheel.release, "build": build, "path": str(wheel.path), "sha256": wheel.sha256}
            fetched.append(row)
            if not as_json:
                click.echo(f"{wheel.release} {wheel.path} sha256 {wheel.sha256}")
    if as_json:
        print_json(fetched)
