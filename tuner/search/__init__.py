"""NCCL's search for channels: from a topology file to its graphs, in Python."""

from tuner.search.cached import find, searched
from tuner.search.request import Hosts, Request
from tuner.search.result import SearchResult

__all__ = ["Hosts", "Request", "SearchResult", "find", "searched"]
