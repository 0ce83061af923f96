"""NCCL's search for channels: from a topology file to the graphs that algorithms run on."""

from tuner.graphs.cached import find, searched
from tuner.graphs.request import Hosts, SearchRequest, SearchResult

__all__ = ["Hosts", "SearchRequest", "SearchResult", "find", "searched"]
