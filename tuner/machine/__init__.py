"""Machines: the catalogue, GPU models, topology files with their graphs, and listings of a node by other tools."""
