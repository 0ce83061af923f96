"""Numbers of things in words."""


def plural(count: int, what: str) -> str:
    """Such as ``1 channel`` and ``2 channels``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def ranks_on_nodes(ranks: int, nodes: int) -> str:
    """Such as ``8 ranks on 1 node``."""
    return f"{plural(ranks, 'rank')} on {plural(nodes, 'node')}"
