"""``nccl-tuner fit``: what measured times determine: constants, alpha and beta, a calibration."""

import click

from tuner.cli.command import note
from tuner.cli.lazy import LazyGroup

VERBS = {
    "constants": "the constants of NCCL's model, for --constants",
    "alpha-beta": "a latency and a bandwidth for each algorithm and protocol",
    "sweep": "alpha and beta of a sweep over sizes, as in the textbook",
    "calibration": "calibrated times of one's own machine, for --calibration",
}


def _as_before(arguments: list[str]) -> list[str]:
    """The command that arguments without one mean, as ``fit`` took them before it had commands."""
    model = next((each for each in ("alpha-beta", "nccl") if each in arguments), None)
    chosen = "alpha-beta" if model == "alpha-beta" else "constants"
    note(f"fit{f' --model {model}' if model else ''}", f"fit {chosen}")
    return [chosen, *(each for each in arguments if each not in ("--model", model, f"--model={model}"))]


@click.group(name="fit", cls=LazyGroup, verbs=VERBS, package="tuner.cli.fit", default=_as_before)
def command() -> None:
    """Fits to measured times. 'nccl-tuner accuracy' says how far off a calibration is.

    \b
    nccl-tuner fit constants one-node.jsonl two-nodes.jsonl --out pod.toml
    nccl-tuner fit calibration sweep.csv --machine dgx-h100 --nccl 2.29.2 -o own.json
    """
