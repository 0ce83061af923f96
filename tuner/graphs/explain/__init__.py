"""Explains why a graph has its channels and its bandwidth, and what would improve it."""

from tuner.graphs.explain.explanation import explain
from tuner.graphs.explain.records import GraphExplanation

__all__ = ["GraphExplanation", "explain"]
