"""NCCL's search for channels: from a topology file to its graphs, in Python."""

from tuner.graphs.cached import find, searched
from tuner.graphs.request import Hosts, Request, SearchResult

__all__ = ["Hosts", "Request", "SearchResult", "find", "searched"]
