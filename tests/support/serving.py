"""Situations of serving engines, drawn by a seed."""

import random
from typing import Any

from tuner.base.names import DataType
from tuner.engines import switches
from tuner.engines.carriers import Carriers
from tuner.engines.releases import EngineRelease
from tuner.engines.situation import Situation

COMPARED = ("vllm@0.30.0", "vllm@0.33.0", "sglang@0.5.20", "sglang@0.5.23")  # the others: make test-engines
CAPABILITIES = (80, 86, 89, 90, 100, 103, 107, 120)
RANKS = (2, 3, 4, 5, 6, 7, 8, 12, 16)
TYPES = ("float16", "bfloat16", "bfloat16", "float32", "int32")
HIDDEN_SIZES = (None, None, 2048, 4096, 7168, 8192)
TRUTHS = ("0", "1")
KILOBYTES = ("0", "1", "100", "1000", "16384", "65536", "131072", "262144")
# Of each engine: variables with values and how often they are set, arguments and how often they are given.
VARIABLES: dict[str, dict[str, tuple[float, tuple[str, ...]]]] = {
    "vllm": {
        "VLLM_BATCH_INVARIANT": (0.2, TRUTHS),
        "VLLM_USE_NCCL_SYMM_MEM": (0.3, TRUTHS),
        "VLLM_ALLREDUCE_USE_FLASHINFER": (0.3, TRUTHS),
        "VLLM_FLASHINFER_ALLREDUCE_BACKEND": (0.3, ("auto", "trtllm", "mnnvl")),
        "VLLM_ALLREDUCE_USE_SYMM_MEM": (0.3, TRUTHS),
        "VLLM_SKIP_P2P_CHECK": (0.2, TRUTHS),
        "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": (0.2, TRUTHS),
    },
    "sglang": {
        "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": (0.2, ("0", "1", "false", "nonsense")),
        "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB": (0.3, KILOBYTES),
        "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB": (0.2, KILOBYTES),
        "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB": (0.2, KILOBYTES),
        "SGLANG_OPT_USE_INKLING_CUSTOM_AR": (0.3, TRUTHS),
        "SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV": (0.2, TRUTHS),
        "SGLANG_MEMORY_SAVER_CUDA_GRAPH": (0.1, TRUTHS),
        "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": (0.4, TRUTHS),
        "PYTORCH_CUDA_ALLOC_CONF": (0.5, ("expandable_segments:True", "max_split_size_mb:64")),
    },
}
ARGUMENTS: dict[str, dict[str, float]] = {
    "vllm": {"disable-custom-all-reduce": 0.2},
    "sglang": {
        "disable-custom-all-reduce": 0.12,
        "enable-symm-mem": 0.12,
        "enable-torch-symm-mem": 0.3,
        "enable-scattered-sconv": 0.12,
        "enable-deterministic-inference": 0.1,
        "enable-mscclpp": 0.2,
        "flashinfer-allreduce-fusion-backend=auto": 0.12,
        "flashinfer-allreduce-fusion-backend=trtllm": 0.04,
        "flashinfer-allreduce-fusion-backend=mnnvl": 0.04,
        "flashinfer-allreduce-fusion-backend=cutedsl": 0.04,
        "enforce-disable-flashinfer-allreduce-fusion": 0.04,
    },
}


# Arguments without which an implementation cannot be answered, by their engine.
ROWS = {"vllm": "max-cudagraph-capture-size=512", "sglang": "cuda-graph-max-bs-decode=256"}


def _is_known(release: EngineRelease, argument: str) -> bool:
    name, _, value = argument.partition("=")
    declared = release.arguments.get(name)
    return declared is not None and value in declared.get("choices", (value,))


class Drawn:
    """A situation with what the user set for the engine, and sizes: drawn ones, and those around each border."""

    def __init__(self, release: EngineRelease, rng: random.Random, sizes: int) -> None:
        self.environment = {
            name: rng.choice(values)
            for name, (share, values) in VARIABLES[release.engine].items()
            if rng.random() < share and (name in release.variables)
        }
        drawn_arguments = [name for name, share in ARGUMENTS[release.engine].items() if rng.random() < share]
        self.arguments = [each for each in drawn_arguments if _is_known(release, each)]
        if ROWS[release.engine].partition("=")[0] in release.arguments:
            self.arguments.append(ROWS[release.engine])
        nodes = rng.choice((1, 1, 1, 2, 4))
        self.situation = Situation(
            capability=rng.choice(CAPABILITIES),
            ranks=rng.choice([count for count in RANKS if count >= nodes]),
            nodes=nodes,
            dtype=DataType[rng.choice(TYPES)],
            nvlink_everywhere=rng.random() < (0.4 if self._is_set("PCIE_IPC") else 0.7),
            peer_access=rng.random() < 0.8,
            multicast=rng.random() < 0.7,
            one_domain=rng.random() < 0.5,
            graph=rng.random() < 0.5,
            hidden_size=rng.choice(HIDDEN_SIZES) or (4096 if self._asks_for_rows() else None),
            switches=switches.read(release, self.environment, self.arguments),
        )
        # Tensors are of whole rows.
        self.step_bytes = self.situation.dtype.size_bytes * (self.situation.hidden_size or 1)
        drawn = (int(2 ** rng.uniform(10, 30)) // self.step_bytes * self.step_bytes for _ in range(sizes))
        self.sizes_bytes = [self.step_bytes, *(max(each, self.step_bytes) for each in drawn)]

    def _asks_for_rows(self) -> bool:
        """Whether an implementation is on whose limit is a number of rows."""
        return self._is_set("PCIE_IPC") or any("flashinfer" in each for each in self.arguments)

    def _is_set(self, word: str) -> bool:
        return any(word in name for name, value in self.environment.items() if value == "1")

    def with_borders(self, carriers: Carriers) -> None:
        """Adds the sizes at, before and behind every border between implementations."""
        for each in carriers.ranges(1024, 1 << 30, self.step_bytes):
            at = each.from_bytes // self.step_bytes
            self.sizes_bytes += [size * self.step_bytes for size in (at - 1, at, at + 1) if size > 0]

    def __repr__(self) -> str:
        given: dict[str, Any] = {"environment": self.environment, "arguments": self.arguments}
        return f"{self.situation} {given}"
