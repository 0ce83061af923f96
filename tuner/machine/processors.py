"""Processors as NCCL counts them."""


def nccls_family(family: int) -> int:
    """NCCL shifts what Linux adds: 143 for AMD's 23 (sic: ncclTopoGetXmlFromCpu, src/graph/xml.cc, v2.28.9-1)."""
    return family if family <= 15 else 15 + ((family - 15) << 4)
