"""Schedule of the collectives of one group: put together, dealt out to channels, split into kernels."""
