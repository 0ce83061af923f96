"""Sentences about links, rules and numbers of graphs."""

from collections.abc import Mapping

from tuner.base.words import plural
from tuner.graphs.explain.links import gbs, phrase
from tuner.graphs.explain.records import Found
from tuner.graphs.explain.runs import Run
from tuner.graphs.system import Link, Node

PATHS = {
    "LOC": "within the GPU",
    "NVL": "over NVLink",
    "NVB": "over NVLinks of another GPU",
    "C2C": "over C2C",
    "PIX": "over one PCIe switch",
    "PXB": "over several PCIe switches",
    "P2C": "over C2C and the CPU's PCIe",
    "PXN": "over the NVLink of the GPU beside the adapter",
    "PHB": "over the CPU",
    "SYS": "over the link between sockets",
    "NET": "over the network",
    "DIS": "by no path",
}


def sentence(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def of_found(found: Found, several: bool) -> str:
    """What a graph has, such as ``2 channels of 12 GB/s (24 GB/s together)``."""
    intra, inter = found.bw_intra_gbs, found.bw_inter_gbs
    count = plural(found.channels, "channel")
    if not several or intra == inter:
        return f"{count} of {gbs(intra)} ({gbs(found.total_intra_gbs)} together)"
    together = f"{found.total_intra_gbs:.4g} and {gbs(found.total_inter_gbs)} together"
    return f"{count} of {intra:.4g} GB/s within a node and {inter:.4g} between nodes ({together})"


def of_link(ends: tuple[Node, Link], has_gbs: float, alike: int, carried: Mapping[int, float]) -> str:
    """What a link has, and what the channels take of it."""
    used = f"{gbs(sum(carried.values()))} for {plural(len(carried), 'channel')}" if carried else "nothing"
    kind = "" if alike == 1 else f" (one of {alike} alike)"
    return sentence(f"{phrase(*ends)}{kind} has {gbs(has_gbs)} and carries {used}.")


def of_rule(kind: str, found: Run) -> str:
    """A rule of the search that limits the graph."""
    trial, bounds, tries = found.trial, found.loop.bounds, found.nccl.search.tries
    if kind == "steps":
        at = next((n for n, step in enumerate(bounds.steps) if step <= trial.bw_inter), len(bounds.steps) - 1)
        near = bounds.steps[max(0, at - 2) : at + 2]
        shown = ", ".join(f"{step:.4g}" for step in near)
        return f"NCCL tries only bandwidths of a list for a channel, here ... {shown} ...; those in between would fit."
    if kind == "paths":
        names = found.system.types.names
        return (
            f"NCCL stops at the nearest types of paths with which it finds channels, here {names[trial.type_intra]} "
            f"between GPUs and {names[trial.type_inter]} to adapters; farther ones would carry more."
        )
    if kind == "ring":
        return f"A tree gets exactly as many channels as the ring has, {found.ring.channels}; other numbers would fit."
    if kind == "channels":
        return f"NCCL searches at most {trial.max_channels} channels for this graph."
    return (
        f"A search ended as NCCL allows only {tries.one} tries of a GPU ({tries.same_channels} where all channels are "
        f"alike), and {tries.all} for all searches of a graph. With 4 times as many it would go on."
    )
