"""Reasons why a graph has these channels and this bandwidth, and what would improve it."""

from tuner.graphs.explain.explanation import explain
from tuner.graphs.explain.records import GraphExplanation

__all__ = ["GraphExplanation", "explain"]
