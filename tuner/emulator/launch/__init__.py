"""Launches in full: the work that each block of a kernel is given, and what the network's proxies are told."""
