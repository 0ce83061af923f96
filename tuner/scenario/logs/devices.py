"""Compute capabilities by the product name that CUDA gives a GPU, as nccl-tests prints it.

Source: NVIDIA's list of CUDA GPUs (developer.nvidia.com/cuda-gpus).
"""

import re

COMP_CAPS = {
    "V100": 70,
    "TITAN V": 70,
    "T4": 75,
    "RTX 2080": 75,
    "A100": 80,
    "A800": 80,
    "A30": 80,
    "A10": 86,
    "A10G": 86,
    "A16": 86,
    "A40": 86,
    "RTX A6000": 86,
    "RTX A5000": 86,
    "RTX 3090": 86,
    "L4": 89,
    "L40": 89,
    "L40S": 89,
    "RTX 4090": 89,
    "H100": 90,
    "H800": 90,
    "H20": 90,
    "H200": 90,
    "GH200": 90,
    "B200": 100,
    "GB200": 100,
    "B300": 103,
    "GB300": 103,
    "RTX 5090": 120,
}


def comp_cap(name: str) -> int | None:
    """80 for ``NVIDIA A100-SXM4-80GB``; None for a product that is not listed."""
    words = re.split(r"[\s-]+", name.removeprefix("NVIDIA").removeprefix("Tesla").strip())
    for length in (3, 2, 1):
        for start in range(len(words)):
            known = COMP_CAPS.get(" ".join(words[start : start + length]))
            if known is not None:
                return known
    return None
