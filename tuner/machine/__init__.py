"""Machines: the catalogue, GPU models, topology files and the graphs found on them, and what tools list about a
node.
"""
