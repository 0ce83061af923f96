"""NCCL's search for channels: from a topology file to its graphs."""

from tuner.graphs.cached import find, searched
from tuner.graphs.request import Hosts, SearchRequest, SearchResult

__all__ = ["Hosts", "SearchRequest", "SearchResult", "find", "searched"]
