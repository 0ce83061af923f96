"""How the collectives of one group are put together, dealt out to channels and split into kernels."""
