"""``nccl-tuner fetch-nccl``: real libraries for the oracle."""

import click

from tuner.cli import options
from tuner.cli.output import print_json
from tuner.oracle import library


@click.command(name="fetch-nccl")
@click.argument("releases", nargs=-1, required=True)
@options.json_option
def command(releases: tuple[str, ...], as_json: bool) -> None:
    """Fetches libnccl of RELEASES with pip into the cache (NCCL_TUNER_CACHE); only the .so is kept.

    \b
    nccl-tuner fetch-nccl 2.28.9
    """
    fetched = []
    for release in releases:
        found = library.fetch(release, lambda message: click.echo(message, err=True))
        fetched.append({"release": found.release, "path": str(found.path), "sha256": found.sha256})
        if not as_json:
            click.echo(f"{found.release} {found.path} sha256 {found.sha256}")
    if as_json:
        print_json(fetched)
