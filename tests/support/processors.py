"""Topologies of processors that few have: POWER, whose GPUs may be linked to it, and Zhaoxin."""

import re
from random import Random
from typing import Literal

Processors = Literal["POWER", "POWER with NVLinks", "Zhaoxin", "mixed"]
PROCESSORS: tuple[Processors, ...] = ("POWER", "POWER with NVLinks", "Zhaoxin", "mixed")
POWER = 'arch="ppc64"'
ZHAOXIN = tuple(
    f'arch="x86_64" vendor="{vendor}" familyid="{family}" modelid="{model}"'
    for vendor in ("CentaurHauls", "  Shanghai  ")
    for family, model in ((7, 0x5B), (7, 0x1B), (6, 0x5B))  # the first is a Yongfeng
)
CPU = re.compile(r'(<cpu numaid="\d+" affinity="[^"]*") arch[^>]*>')
NVSWITCH, POWER_BRIDGE = 'tclass="0x068000"', 'tclass="0x068001"'


def with_processors(topology: str, processors: Processors, seed: str) -> str:
    """The same with other processors; the same for the same seed."""
    random = Random(seed)
    choices = {"Zhaoxin": ZHAOXIN, "mixed": (POWER, *ZHAOXIN)}.get(processors, (POWER,))
    changed = CPU.sub(lambda cpu: f"{cpu[1]} {random.choice(choices)}>", topology)
    return changed.replace(NVSWITCH, POWER_BRIDGE) if processors == "POWER with NVLinks" else changed
