"""Communicators of some ranks of others, for the tests: the same for one seed."""

import random
from dataclasses import replace

from tuner.machine import catalogue
from tuner.scenario import Scenario
from tuner.scenario.description import Members

Described = tuple[str, int, int | None]
WHOLES: list[list[Described]] = [  # kinds of nodes: machine, nodes, and GPUs or trays used of each
    [("dgx-h100", 1, None)],
    [("dgx-h100", 2, None)],
    [("dgx-h100", 4, 4)],
    [("dgx-a100", 2, None)],
    [("dgx-1v", 1, None)],
    [("dgx-1v", 2, None)],
    [("dgx-b200", 2, None)],
    [("aws-p5", 2, None)],
    [("azure-nd-a100-v4", 2, None)],
    [("pcie-l40s", 1, None)],
    [("pcie-l40s", 2, None)],
    [("hgx-h100-amd", 2, None)],
    [("gh200-4x", 3, None)],
    [("a100-4x-2nic", 3, None)],
    [("gb200-nvl72", 1, 3)],
    [("gb200-nvl72", 2, 2)],
    [("dgx-h100", 1, None), ("dgx-a100", 1, None)],
    [("dgx-h100", 2, 3), ("dgx-h100", 1, 6)],
]
SETTINGS: list[dict[str, str]] = [
    {},
    {},
    {"NCCL_MAX_NCHANNELS": "6"},
    {"NCCL_MIN_NCHANNELS": "20"},
    {"NCCL_MIN_CTAS": "12", "NCCL_MAX_CTAS": "24"},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NCCL_MIN_P2P_NCHANNELS": "8"},
    {"NCCL_ALGO": "Ring"},
    {"NCCL_CROSS_NIC": "0"},
    {"NCCL_P2P_LEVEL": "PHB"},
    {"NCCL_P2P_NVL_CHUNKSIZE": "100000"},
]


def draw(nccl: str, generator: random.Random) -> Scenario:
    """A communicator of some ranks of one that this release runs on."""
    running = [each for each in WHOLES if all(nccl in catalogue.load(name).releases for name, _, _ in each)]
    first, *others = [_kind(nccl, *one) for one in generator.choice(running)]
    whole = replace(first, others=tuple(others), environment=dict(generator.choice(SETTINGS)))
    ranks = _ranks(whole.ranks, generator)
    shares = generator.random() < 0.5
    by = "shrink" if nccl >= "2.27.3" and len(ranks) < whole.ranks and generator.random() < 0.4 else "split"
    return replace(whole, members=Members(ranks, shares, by))


def _kind(nccl: str, machine: str, nodes: int, used: int | None) -> Scenario:
    if catalogue.load(machine).trays:
        return Scenario(nccl, nodes, machine=machine, trays=used)
    return Scenario(nccl, nodes, machine=machine, gpus_per_node=used)


def _ranks(of: int, generator: random.Random) -> tuple[int, ...]:
    """Two or more: a block, a stride as of tensor and data parallel groups, all but a few, or any."""
    kind = generator.choice(("block", "stride", "all but", "any"))
    if kind == "block":
        size = generator.randint(2, of)
        start = generator.randrange(of - size + 1)
        return tuple(range(start, start + size))
    if kind == "stride":
        step = generator.randint(2, max(2, of // 2))
        start = generator.randrange(step)
        found = tuple(range(start, of, step))
        return found if len(found) > 1 else tuple(range(of))
    if kind == "all but" and of > 3:
        left_out = generator.sample(range(of), generator.randint(1, min(3, of - 2)))
        return tuple(rank for rank in range(of) if rank not in left_out)
    return tuple(sorted(generator.sample(range(of), generator.randint(2, of))))
