"""Why a graph has these channels and this bandwidth, and what would give it more."""

from tuner.search.explain.explain import explain
from tuner.search.explain.records import Explanation

__all__ = ["Explanation", "explain"]
