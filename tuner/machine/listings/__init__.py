"""Listings of a node's devices (``nvidia-smi topo -m``, lstopo's XML): makes a topology from them, or finds similar
machines in the catalogue.
"""

from tuner.machine.listings.complete import ListingAdditions, completed
from tuner.machine.listings.read import read
from tuner.machine.listings.shape import Listing

__all__ = ["Listing", "ListingAdditions", "completed", "read"]
