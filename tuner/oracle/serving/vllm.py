"""Asks vLLM's own classes for AllReduce which implementation carries a tensor."""

import ast
import builtins
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from tuner.oracle.serving import stand_ins
from tuner.oracle.serving.stand_ins import DEVICE

COMMUNICATORS = "vllm/distributed/device_communicators"
FILES = (
    "vllm/envs.py",
    "vllm/compilation/passes/fusion/allreduce_rms_fusion.py",
    *(f"{COMMUNICATORS}/{name}.py" for name in (
        "all_reduce_utils", "cuda_communicator", "custom_all_reduce", "flashinfer_all_reduce",
        "flashinfer_pcie_ipc_all_reduce", "symm_mem",
    )),
)  # fmt: skip
SOME_HAVE = ()  # files that only some releases have
VARIABLES = (
    "VLLM_BATCH_INVARIANT",
    "VLLM_USE_NCCL_SYMM_MEM",
    "VLLM_ALLREDUCE_USE_FLASHINFER",
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
    "VLLM_ALLREDUCE_USE_SYMM_MEM",
    "VLLM_SKIP_P2P_CHECK",
    "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC",
)
LIMITS = (
    "KiB",
    "MiB",
    "CUSTOM_ALL_REDUCE_MAX_SIZES",
    "SYMM_MEM_ALL_REDUCE_MAX_SIZES",
    "FI_MNNVL_ALLREDUCE_MAX_SIZE_MB",
    "NCCL_SYMM_MEM_ALL_REDUCE_CONFIG",
)


def carriers(folder: Path, asked: Mapping[str, Any]) -> Iterator[str]:
    """For each size in bytes of ``asked``, the name of the implementation that vLLM's own code chooses.

    ``asked`` has the fields of a situation, and the ``arguments`` that the user set; the variables are in the process's
    environment. Raises the errors of vLLM's code, and KeyError if a file of the release lacks a name.
    """
    made = _World(folder, asked)
    with stand_ins.modules(made.modules):
        communicator = made.communicator()
        for nbytes in asked["sizes"]:
            yield communicator.all_reduce(stand_ins.of_bytes(nbytes, asked["dtype"], asked["hidden_size"]))


class _World:
    """vLLM's classes in one situation; each runs with a namespace of stand-ins."""

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        self.folder, self.asked = folder, asked
        self.made: Any = None  # the communicator, after it was made
        self.torch = stand_ins.torch(asked)
        self.dist = stand_ins.distributed(asked)
        self.torch.distributed = self.dist
        self.symmetric = stand_ins.symmetric_memory(asked)
        self.envs = self._envs()
        self.platform = self._platform()
        self.common = {
            "contextmanager": contextmanager,
            "torch": self.torch,
            "dist": self.dist,
            "ProcessGroup": object,
            "envs": self.envs,
            "logger": MagicMock(),
            "current_platform": self.platform,
            "in_the_same_node_as": lambda group, source_rank: [asked["nodes"] == 1] * asked["ranks"],
            "_node_count": lambda group: asked["nodes"],
            "get_node_count": lambda: asked["nodes"],
            "is_symmetric_memory_enabled": lambda: self.envs.VLLM_USE_NCCL_SYMM_MEM,
        }
        allocator = {"is_symmetric_memory_enabled": self.common["is_symmetric_memory_enabled"]}
        path = COMMUNICATORS.replace("/", ".")
        self.modules: dict[str, dict[str, Any]] = {
            f"{path}.pynccl_allocator": allocator,
            "vllm.distributed.parallel_state": {
                "_ENABLE_CUSTOM_ALL_REDUCE": "disable-custom-all-reduce" not in asked["arguments"],
                "get_tp_group": lambda: SimpleNamespace(device_communicator=self.made, ranks=range(asked["ranks"])),
            },
            "vllm.model_executor.warmup.flashinfer_autotune_cache": {
                "resolve_flashinfer_autotune_file": lambda _: Path("cache.json")
            },
            f"{path}.pynccl": {"PyNcclCommunicator": self._pynccl},
            f"{path}.quick_all_reduce": {"QuickAllReduce": MagicMock()},
        }
        self.limits = self._file("all_reduce_utils", (*LIMITS, "should_nccl_symm_mem_allreduce"))
        self.over_pcie, self.kind = self._over_pcie(), self._communicators()
        self.modules |= {
            f"{path}.symm_mem": {"SymmMemCommunicator": self._symmetric()},
            f"{path}.custom_all_reduce": {"CustomAllreduce": self._custom()},
            f"{path}.flashinfer_all_reduce": {"FlashInferAllReduce": self._flashinfer()},
            f"{path}.flashinfer_pcie_ipc_all_reduce": self.over_pcie,
            f"{path}.cuda_communicator": {"CudaCommunicator": self.kind},
        }

    def _file(self, name: str, names: tuple[str, ...], given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return stand_ins.run(self.folder / COMMUNICATORS / f"{name}.py", names, {**self.common, **(given or {})})

    def _envs(self) -> Any:
        names = ("environment_variables", "env_with_choices")
        file = self.folder / "vllm/envs.py"
        needed = stand_ins.run(file, names, {**_names(file), "os": os})["environment_variables"]
        return SimpleNamespace(**{name: needed[name]() for name in VARIABLES})

    def _platform(self) -> Any:
        number = self.asked["capability"]
        capability = SimpleNamespace(as_version_str=lambda: f"{number // 10}.{number % 10}", to_int=lambda: number)
        made = MagicMock()
        made.is_cuda.return_value = made.is_cuda_alike.return_value = True
        made.is_rocm.return_value = False
        made.get_device_capability = lambda *_: capability
        made.has_device_capability = lambda least, *_: number >= least
        made.is_device_capability_family = lambda family, *_: number // 10 == family // 10
        made.is_fully_connected = lambda _: self.asked["nvlink_everywhere"]
        made.visible_device_id_to_physical_device_id = lambda index: index
        return made

    def _pynccl(self, **_: object) -> Any:
        return SimpleNamespace(world_size=self.asked["ranks"], disabled=False, all_reduce=lambda _: "nccl")

    def _symmetric(self) -> Any:
        given = {"torch_symm_mem": self.symmetric, "symm_mem_available": True, **self.limits}
        kind = self._file("symm_mem", ("SymmMemCommunicator",), given)["SymmMemCommunicator"]
        kind.all_reduce = lambda *_, **__: "torch-symmetric"
        return kind

    def _custom(self) -> Any:
        functions = ("_can_p2p", "_group_can_attempt_mnnvl", "CustomAllreduce")
        given = {
            "custom_ar": True,
            "ops": MagicMock(meta_size=lambda: 0, allocate_shared_buffer_and_handle=lambda _: (0, 0)),
            "gpu_p2p_access_check": lambda *_: self.asked["peer_access"],
            "_has_local_multicast_support": lambda _: self.asked["multicast"],
            "_all_ranks_true": lambda _, value: value,
            "_supports_mnnvl_multimem_reduce_scatter": lambda *_: False,
            "_MNNVL_MULTIMEM_REDUCE_SCATTER_WORLD_SIZES": (),
            "is_weak_contiguous": lambda _: True,
            **self.limits,
        }
        # A group's decision is the minimum over its ranks, which all give the same value here.
        self.torch.tensor = lambda value=0, dtype=None, device=None: SimpleNamespace(
            item=lambda: value[0] if isinstance(value, list) else value,
            element_size=lambda: dtype.itemsize if dtype else 4,
        )
        kind = self._file("custom_all_reduce", functions, given)["CustomAllreduce"]
        multicasts = int(stand_ins.has_group_multicast(self.asked))
        kind._init_mnnvl_buffer = lambda self, _: setattr(self, "mnnvl_multicast_ptr", multicasts)
        kind.create_shared_buffer = staticmethod(lambda *_, **__: [0])
        kind.close = lambda self: None
        kind.__del__ = lambda self: None
        kind.custom_all_reduce = lambda *_: "custom"
        return kind

    def _flashinfer(self) -> Any:
        functions = (
            "MiB",
            "_get_tuned_standalone_max_size",
            "_create_workspace",
            "_resolve_fi_ar_backend",
            "get_fi_ar_workspace",
            "FlashInferAllReduce",
            "_fi_ar_workspace",
            "_fi_ar_quant_workspace",
            "_fi_ar_workspace_groups",
        )
        fused = self.folder / "vllm/compilation/passes/fusion/allreduce_rms_fusion.py"
        table = stand_ins.run(fused, ("FI_ALLREDUCE_FUSION_MAX_SIZE_MB",), {})["FI_ALLREDUCE_FUSION_MAX_SIZE_MB"]
        sizes = table.get(self.asked["capability"], {})
        given = {
            "fi_ar_available": True,
            "flashinfer_comm": SimpleNamespace(create_allreduce_fusion_workspace=self._workspace),
            "TorchDistBackend": MagicMock(),
            "PassConfig": SimpleNamespace(default_fi_allreduce_fusion_max_size_mb=lambda: sizes),
            "gpu_sync_allowed": MagicMock(),
            "random": MagicMock(),
            "os": os,
            "_fi_ar_workspace_failed": False,
            "_fi_ar_quant_workspace_failed": False,
            **self.limits,
        }
        kind = self._file("flashinfer_all_reduce", functions, given)["FlashInferAllReduce"]
        kind.all_reduce = lambda *_: "flashinfer"
        return kind

    def _workspace(self, backend: str, max_token_num: int, hidden_dim: int, **_: object) -> Any:
        return stand_ins.fusion_workspace(self.asked, backend, max_token_num, hidden_dim)

    def _over_pcie(self) -> Any:
        library = SimpleNamespace(PcieIpcAllReduceWorkspace=stand_ins.pcie_workspace(self.asked))
        given = {"flashinfer_comm": library, "_pcie_ipc_available": True}
        kinds = ("_SUPPORTED_WORLD_SIZES", "_SUPPORTED_DTYPES", "FlashInferPcieIpcAllReduce")
        names = (*kinds, "warmup_flashinfer_pcie_ipc_allreduce")
        made = self._file("flashinfer_pcie_ipc_all_reduce", names, given)
        made["FlashInferPcieIpcAllReduce"].all_reduce = lambda *_: "flashinfer-pcie-ipc"
        return made

    def _warm_up(self) -> None:
        """Runs vLLM's warm-up before the capture of graphs, with the sizes of the largest graph."""
        asked = self.asked
        given = stand_ins.arguments(asked)
        widest, hidden = given.get("max-cudagraph-capture-size"), asked["hidden_size"]
        sizes = [1, int(widest)] if widest is not None and hidden is not None else []
        configuration = SimpleNamespace(
            parallel_config=SimpleNamespace(use_ubatching=False),
            compilation_config=SimpleNamespace(cudagraph_capture_sizes=sizes),
        )
        model = SimpleNamespace(get_hidden_size=lambda: hidden, dtype=stand_ins.TYPES[asked["dtype"]])
        worker = SimpleNamespace(vllm_config=configuration, model_config=model, model_runner=None)
        self.over_pcie["warmup_flashinfer_pcie_ipc_allreduce"](worker)

    def _communicators(self) -> Any:
        given = {
            "DeviceCommunicatorBase": _Base,
            "rocm_aiter_ops": MagicMock(is_custom_all_reduce_enabled=lambda: False),
            "AiterCustomAllreduce": MagicMock(),
            "register_nccl_symmetric_ops": MagicMock(),
            "get_current_vllm_config_or_none": lambda: None,
            **self.limits,
        }
        return self._file("cuda_communicator", ("CudaCommunicator",), given)["CudaCommunicator"]

    def communicator(self) -> Any:
        """vLLM's communicator of the tensor-parallel group."""
        self.torch.ops.vllm.all_reduce_symmetric_with_copy = lambda _: "nccl-symmetric"
        _Base.world_size = self.asked["ranks"]
        self.made = self.kind(MagicMock(), DEVICE, MagicMock(), "tp:0")
        self._warm_up()
        return self.made


class _Base:
    """The base class of vLLM's communicator: the group as it was given."""

    world_size = 1

    def __init__(self, cpu_group: Any, device: Any, device_group: Any, unique_name: str, *_: Any, **__: Any) -> None:
        self.cpu_group, self.device, self.device_group, self.unique_name = cpu_group, device, device_group, unique_name
        self.use_all2all = False


@cache
def _names(file: Path) -> dict[str, Any]:
    """Stand-ins for every name that a file's table of variables uses; few of the table's entries are ever called."""
    names = {node.id for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Name)}
    return {name: MagicMock() for name in names if not hasattr(builtins, name)}
