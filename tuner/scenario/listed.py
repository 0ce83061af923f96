"""A node that nvidia-smi or lstopo listed, where a topology is asked for."""

from pathlib import Path

from tuner.base.errors import BadInput
from tuner.machine import gpus
from tuner.machine.listings import Given, completed, read
from tuner.machine.listings.nearest import ranked
from tuner.machine.listings.shape import of_listing

MOST_NEAR = 2


def topology_of(file: Path, gpu: str | None, net_gbps: float | None, net_latency_us: float | None) -> str | None:
    """The topology of a listing; None for a file that is none.

    Errors: BadInput says what the listing does not, how to say it, and which machines are nearest.
    """
    listing = read(file)
    if listing is None:
        return None
    try:
        return completed(file, Given(gpu, net_gbps, net_latency_us)).topology
    except BadInput as error:
        near = ranked(of_listing(listing, None if gpu is None else gpus.load(gpu)))[:MOST_NEAR]
        raise BadInput(
            f"{error}; valid: these with 'nccl-tuner machines complete {file} -o node.xml' and `topology` node.xml, or "
            f"`machine`; nearest: {'; '.join(one.in_words for one in near)}; not known: {', '.join(near[0].unknown)}"
        ) from None
