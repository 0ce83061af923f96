"""NCCL's search for channels: from a topology file to its graphs, in Python."""

from tuner.search.cached import find, searched
from tuner.search.request import Hosts, Request

__all__ = ["Hosts", "Request", "find", "searched"]
