"""``nccl-tuner plot``: pictures."""

import click

from tuner.cli.lazy import LazyGroup

VERBS = {
    "map": "what NCCL picks, over sizes and node counts",
    "curves": "predicted time and bus bandwidth of every combination, over sizes",
    "diff": "where another release or setting changes the pick, over sizes and node counts",
    "measured": "measured times against those that the model predicts",
}


@click.group(name="plot", cls=LazyGroup, verbs=VERBS, package="tuner.cli.plot")
def command() -> None:
    """Pictures of choices and times; --out FILE.png or FILE.svg draws one, --json prints what it shows.

    \b
    nccl-tuner plot map allreduce --machine dgx-h100 --nccl 2.28.9 --to-nodes 64 --out map.png
    """
