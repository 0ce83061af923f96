"""What a release's file says of how NCCL joins the graphs of nodes into channels: named rules, table ``[connect]``.

``tuner.emulator.connect`` has what the names stand for.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, eq=False)
class Connect:
    """The table ``[connect]``."""

    # Where rings 2k and 2k + 1 of every second node change places, so that both ends of a connection are on one rail:
    # on an even number of nodes where the own ring crosses adapters; where any node's does; where any node's was
    # searched in pairs (crossNic 2); on the nodes whose ring was.
    swapped_rings: Literal["never", "by_own_graph", "by_any_graph", "by_any_pairs", "by_own_pairs"]
    # The GPUs at which NVLS channels begin: of as many channels as all rings, or as the node's rings, have, and rank 0
    # for further ones; or each GPU once; or the same, read in steps of as many as a NVLink domain has ranks (sic),
    # which are more than the node's where NCCL takes the domain for several.
    nvls_heads: Literal["of_common_rings", "of_own_rings", "distinct", "distinct_by_domain"]
    nvls_joined: Literal["before_copies", "after_copies"]  # when the channels get these heads and their trees
    nvls_adapters: Literal["first", "in_turn"]  # of a head at which several channels begin
    # Where PAT is connected as a communicator is made, if that is not left to the first call.
    pat_at_once: Literal["one_rank_per_node", "or_with_nvls"]
