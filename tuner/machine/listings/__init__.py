"""Listings of a node by nvidia-smi topo -m and lstopo's XML: made a topology, or found in the catalogue."""

from tuner.machine.listings.complete import ListingAdditions, completed
from tuner.machine.listings.read import read
from tuner.machine.listings.shape import Listing

__all__ = ["Listing", "ListingAdditions", "completed", "read"]
