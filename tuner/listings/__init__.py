"""What other tools print of a node, nvidia-smi topo -m and lstopo's XML: made a topology, or found in the catalogue."""

from tuner.listings.complete import Given, completed
from tuner.listings.read import read
from tuner.listings.records import Listing

__all__ = ["Given", "Listing", "completed", "read"]
