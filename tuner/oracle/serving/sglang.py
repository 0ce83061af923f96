"""Asks SGLang's own classes for AllReduce which implementation carries a tensor."""

import ast
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from enum import Enum
from functools import cache
from itertools import product
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, NamedTuple, Optional
from unittest.mock import MagicMock

from tuner.oracle.serving import mscclpp, stand_ins
from tuner.oracle.serving.stand_ins import DEVICE

DISTRIBUTED = "sglang/srt/distributed"
COMMUNICATORS = f"{DISTRIBUTED}/device_communicators"
FILES = (
    "sglang/srt/environ.py",
    f"{DISTRIBUTED}/parallel_state.py",
    *(f"{COMMUNICATORS}/{name}.py" for name in (
        "all_reduce_utils", "configs/custom_all_reduce_v2", "custom_all_reduce", "custom_all_reduce_utils",
        "custom_all_reduce_v2", "pymscclpp", "torch_symm_mem",
    )),
    "sglang/srt/arg_groups/overrides.py",
    "sglang/srt/layers/flashinfer_comm_fusion.py",
)  # fmt: skip
PCIE = f"{COMMUNICATORS}/pcie_ipc_ar.py"  # from 0.5.21 on
# A release has one of these files
ROWS = ("sglang/srt/layers/communicator.py", "sglang/srt/layers/layer_boundary/residual/add_norm.py")
SOME_HAVE = (PCIE, *ROWS)
VARIABLES = (
    "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2",
    "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB",
    "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB",
    "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB",
    "SGLANG_MEMORY_SAVER_CUDA_GRAPH",
    "SGLANG_OPT_USE_INKLING_CUSTOM_AR",
    "SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV",
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    "SGLANG_PCIE_IPC_MAX_NUMEL",
)
WAYS = {
    "ca": None,
    "torch_symm_mem": "torch-symmetric",
    "pynccl": "nccl",
    "pymscclpp": "mscclpp",
    "pcie_ipc": "flashinfer-pcie-ipc",
}
FLASHINFERS_TYPES = ("float16", "bfloat16", "float32")


def carriers(folder: Path, asked: Mapping[str, Any]) -> Iterator[str]:
    """For each size in bytes of ``asked``, the name of the implementation that SGLang's own code chooses.

    ``asked`` has the fields of a situation, and the ``arguments`` that the user set; the variables are in the process's
    environment. Raises the errors of SGLang's code, and KeyError if a file of the release lacks a name.
    """
    group = _Group(folder, asked)
    for nbytes in asked["sizes"]:
        yield group.all_reduce(stand_ins.of_bytes(nbytes, asked["dtype"], asked["hidden_size"]))


class _Group:
    """SGLang's coordinator of the tensor-parallel group; its own classes run on stand-ins."""

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        self.folder, self.asked = folder, asked
        self.torch = stand_ins.torch(asked)
        self.dist = stand_ins.distributed(asked)
        self.torch.distributed = self.dist
        self.envs = self._envs()
        self.backend = self._backend()
        self.common = {
            "torch": self.torch,
            "dist": self.dist,
            "ProcessGroup": object,
            "envs": self.envs,
            "logger": MagicMock(),
            "cache": cache,
            "contextmanager": contextmanager,
            "NamedTuple": NamedTuple,
            "Optional": Optional,
            "os": os,
            "_is_hip": False,
            "_is_cuda": True,
            "_is_musa": False,
            "in_the_same_node_as": lambda group, source_rank: [asked["nodes"] == 1] * asked["ranks"],
            "is_weak_contiguous": lambda _: True,
            "is_in_tc_piecewise_cuda_graph": lambda: False,
        }
        self.coordinator = self._coordinator()

    def _file(self, name: str, names: tuple[str, ...], given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return stand_ins.run(self.folder / COMMUNICATORS / f"{name}.py", names, {**self.common, **(given or {})})

    def _envs(self) -> Any:
        made: dict[str, Any] = {"os": os, "warnings": warnings, "Any": Any, "contextmanager": contextmanager}
        exec(_variables(self.folder / "sglang/srt/environ.py"), made)
        return made["Envs"]()

    def _links(self) -> dict[str, Any]:
        given = {
            "is_full_nvlink": lambda *_: self.asked["nvlink_everywhere"],
            "can_p2p": lambda *_: self.asked["peer_access"],
        }
        made = self._file("custom_all_reduce_utils", ("can_use_custom_all_reduce_with_nvlink",), given)
        return {
            "can_use_custom_all_reduce_with_nvlink": made["can_use_custom_all_reduce_with_nvlink"],
            "is_one_nvlink_clique": lambda *_: self.asked["one_domain"],
        }

    def _second_version(self) -> dict[str, Any]:
        # The file makes one kind of record out of three thresholds for each context, of which its names are its own.
        names = tuple(_top_level(self.folder / COMMUNICATORS / "configs/custom_all_reduce_v2.py"))
        tables = self._file("configs/custom_all_reduce_v2", names)
        expandable = "expandable_segments:True" in self.asked["environment"].get("PYTORCH_CUDA_ALLOC_CONF", "")
        memory = MagicMock(multicast_ptr=int(stand_ins.has_group_multicast(self.asked)))
        memory.get_buffer.side_effect = lambda *_: MagicMock()
        given = {
            **self._links(),
            "get_all_reduce_config": tables["get_all_reduce_config"],
            "get_supported_world_sizes": tables["get_supported_world_sizes"],
            "_is_vmm_backed_allocator": lambda _: expandable,
            "_allocate_symmetric_memory": lambda *_, **__: (MagicMock(), memory),
            "AllReduceAlgo": _Algorithm,
            **{name: MagicMock() for name in ("Communicator", "IPCManager", "PullPlane", "PushPlane")},
            **{name: MagicMock() for name in ("VmmGraphInputManager", "get_all_reduce_module")},
        }
        names = tuple(_top_level(self.folder / COMMUNICATORS / "custom_all_reduce_v2.py") - set(given) - {"logger"})
        return self._file("custom_all_reduce_v2", names, given)

    def _custom(self) -> tuple[Any, str]:
        """The communicator of the custom AllReduce that SGLang makes (None if that fails), and this project's name for
        it."""
        second = self._second_version()
        first = self._file(
            "custom_all_reduce",
            ("CustomAllreduce", "dispatch_custom_allreduce"),
            {
                **self._links(),
                "_use_amd_deterministic_impl": lambda: False,
                "ops": MagicMock(IS_CUSTOM_AR_AVAILABLE=True, meta_size=lambda: 0),
                "__package__": "made",
            },
        )
        first["CustomAllreduce"].create_shared_buffer = staticmethod(lambda *_, **__: [0])
        first["CustomAllreduce"].__del__ = lambda self: None
        second["CustomAllReduceV2"].__del__ = lambda self: None
        with stand_ins.modules({"made.custom_all_reduce_v2": second}):
            kind = first["dispatch_custom_allreduce"](group=MagicMock(), device=DEVICE)
        made = kind(group=MagicMock(), device=DEVICE)
        is_second = kind is second["CustomAllReduceV2"]
        if is_second and not made.disabled and self.asked["graph"]:
            made._graph_mode_allowed = made._is_graph_mode_supported  # as within capture()
        return made, "custom-v2" if is_second else "custom-v1"

    def _symmetric(self) -> Any:
        limits = self._file("all_reduce_utils", ("MiB", "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES"))
        scattered = "enable-scattered-sconv" in self.asked["arguments"]
        given = {
            "torch_symm_mem": stand_ins.symmetric_memory(self.asked),
            "torch_symm_mem_available": True,
            "Union": MagicMock(),
            "get_exec": lambda: SimpleNamespace(comm=SimpleNamespace(enable_scattered_sconv=scattered)),
            "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES": limits["TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES"],
        }
        kind = self._file("torch_symm_mem", ("TorchSymmMemCommunicator",), given)["TorchSymmMemCommunicator"]
        try:
            return kind(MagicMock(), DEVICE)
        except RuntimeError:  # no rendezvous is possible: the engine ends
            return None

    def _mscclpp(self) -> Any:
        """MSCCL++'s communicator as it is during the capture of a graph; None if the user did not enable it."""
        if "enable-mscclpp" not in self.asked["arguments"]:
            return None
        asked, library = self.asked, mscclpp.library(self.asked)
        # All types of configurations, of which one release has none.
        file = self.folder / COMMUNICATORS / "pymscclpp.py"
        given = {
            "importlib": SimpleNamespace(import_module=lambda name: library[name]),
            "msgspec": mscclpp.MSGSPEC,
            "dataclass_replace": lambda spec, **changed: SimpleNamespace(**{**vars(spec), **changed}),
            "product": product,
            "Callable": Callable,
            "ReduceOp": SimpleNamespace(SUM=object()),
            "get_exec": self._exec,
            "is_in_torch_compile_warmup": lambda: False,
            "get_pcg_capture_stream": lambda: None,
        }
        made = self._file("pymscclpp", tuple(_top_level(file) - {"logger"}), given)
        kind = made["PyMscclppCommunicator"]
        # Nothing is timed: everything that runs counts as equally fast, and kernels for one node do not run on several.
        kind._get_time = lambda _, each, *__: float("inf" if mscclpp.fails(each, asked) else 1)
        gpus = self.torch.cuda.device_count
        before, gpus.return_value = gpus.return_value, asked["ranks"] // asked["nodes"]
        found = kind(MagicMock(), DEVICE)
        gpus.return_value = before
        if asked["graph"]:
            self.capture = found.change_state(enable=True)
            self.capture.__enter__()
        return found

    def _exec(self) -> Any:
        given = stand_ins.arguments(self.asked)
        return SimpleNamespace(
            comm=SimpleNamespace(
                enable_symm_mem="enable-symm-mem" in given,
                flashinfer_allreduce_fusion_backend=self.backend,
            ),
            kernel=SimpleNamespace(disable_flashinfer_autotune=True),
        )

    def _backend(self) -> str | None:
        """The backend of FlashInfer's AllReduce that SGLang uses after it checked the user's settings; None for
        none."""
        given = stand_ins.arguments(self.asked)
        view = SimpleNamespace(
            flashinfer_allreduce_fusion_backend=given.get("flashinfer-allreduce-fusion-backend"),
            enforce_disable_flashinfer_allreduce_fusion="enforce-disable-flashinfer-allreduce-fusion" in given,
            enable_deterministic_inference="enable-deterministic-inference" in given,
        )
        names = ("_enforce_disable_allreduce_fusion", "_deterministic_allreduce_fusion_disable")
        around = {"register_post_process": lambda function: function, "logger": MagicMock()}
        passes = stand_ins.run(self.folder / "sglang/srt/arg_groups/overrides.py", names, around)
        for name in names:
            for field, value in passes[name](view).items():
                setattr(view, field, value)
        backend: str | None = view.flashinfer_allreduce_fusion_backend
        return backend

    def _flashinfer(self, group: Any) -> Any:
        """SGLang's functions for FlashInfer's AllReduce, with the workspace that SGLang makes before it captures
        graphs."""
        asked = self.asked
        generation = asked["capability"] // 10
        parallel = SimpleNamespace(
            nnodes=asked["nodes"],
            tp_group=group,
            attn_tp_size=asked["ranks"],
            attn_tp_rank=0,
            attn_tp_group=group,
        )
        buffers: dict[str, Any] = {}
        file = self.folder / "sglang/srt/layers/flashinfer_comm_fusion.py"
        names = _top_level(file) - {"logger"}
        names = {name for name in names if not name.startswith(("fake_", "flashinfer_allreduce_residual"))}
        given = {
            **self.common,
            "Tuple": tuple,
            "inspect": inspect,
            "get_exec": self._exec,
            "get_parallel": lambda: parallel,
            "get_platform": lambda: SimpleNamespace(is_sm90=generation == 9, is_sm100=generation == 10),
            "get_resources": lambda: SimpleNamespace(buffers=buffers),
            "get_attn_tp_group": lambda: group,
            "get_tp_group": lambda: group,
            "is_flashinfer_available": lambda: True,
            "is_one_nvlink_clique": lambda *_, **__: asked["one_domain"],
        }
        made = stand_ins.run(file, tuple(names), given)
        made |= {
            "_flashinfer_comm": MagicMock(),
            "_create_allreduce_fusion_workspace": self._workspace,
            "_preflight_check_workspace_memory": lambda **_: True,
        }
        if made.get("uses_cutedsl_ar_fusion", lambda: False)():
            made["resolve_flashinfer_allreduce_fusion_backend"]()  # as base_runner.py does for this function
        elif asked["hidden_size"] is not None:
            experts = {"post_experts_reduction_group": lambda: group}
            with stand_ins.modules({"sglang.srt.layers.moe.utils": experts}):
                made["ensure_workspace_initialized"](
                    max_token_num=self._fused_rows(),
                    hidden_dim=asked["hidden_size"],
                    dtype=stand_ins.TYPES[asked["dtype"]],
                    use_attn_tp_group=True,
                )
        return made

    def _fused_rows(self) -> int:
        file = next(self.folder / name for name in ROWS if (self.folder / name).is_file())
        rows: int = stand_ins.run(file, ("FUSE_ALLREDUCE_MAX_BATCH_SIZE",), {})["FUSE_ALLREDUCE_MAX_BATCH_SIZE"]
        return rows

    def _workspace(self, backend: str, max_token_num: int, hidden_dim: int, dtype: Any, **_: object) -> Any:
        if dtype.name not in FLASHINFERS_TYPES:
            raise RuntimeError("this backend does not work here")
        made = stand_ins.fusion_workspace(self.asked, backend, max_token_num, hidden_dim)
        made.metadata = {"use_fp32_lamport": dtype.name == "float32"}
        return made

    def _over_pcie(self, deterministic: bool) -> Any:
        """FlashInfer's AllReduce over PCIe; None if the release does not have it, or it does not support this group."""
        if not (self.folder / PCIE).is_file():
            return None
        rows = stand_ins.arguments(self.asked).get("cuda-graph-max-bs-decode")
        made = self._file("pcie_ipc_ar", tuple(_top_level(self.folder / PCIE) - {"logger"}), {"functools": functools})
        given = {"group_name": "tp", "world_size": self.asked["ranks"], "deterministic": deterministic}
        if not made["eligible_group"](**given):
            return None
        with stand_ins.modules(self._pcie_modules()):
            found = made["PcieIpcCommunicator"](MagicMock(), DEVICE, MagicMock())
            if self.asked["hidden_size"] is not None:
                found.prepare(hidden=self.asked["hidden_size"], max_rows=None if rows is None else int(rows))
        return found

    def _pcie_modules(self) -> dict[str, dict[str, Any]]:
        graph = SimpleNamespace(cuda_graph_config=None)
        context = {
            "get_exec": lambda: SimpleNamespace(graph=graph, kernel=self._exec().kernel),
            "get_spec": lambda: None,
        }
        return {
            "flashinfer.comm": {"PcieIpcAllReduceWorkspace": stand_ins.pcie_workspace(self.asked)},
            "sglang.srt.runtime_context": context,
        }

    def _coordinator(self) -> Any:
        arguments = self.asked["arguments"]
        deterministic = "enable-deterministic-inference" in arguments
        custom, self.name = None, ""
        if "disable-custom-all-reduce" not in arguments and not deterministic:
            custom, self.name = self._custom()
        symmetric = None
        if "enable-torch-symm-mem" in arguments and not deterministic:
            symmetric = self._symmetric()
        pynccl = SimpleNamespace(change_state=lambda enable: nullcontext(), all_reduce=self._take("nccl-symmetric"))
        made = SimpleNamespace(
            world_size=self.asked["ranks"],
            unique_name="tp:0",
            ca_comm=custom,
            torch_symm_mem_comm=symmetric,
            pynccl_comm=pynccl,
            is_symmetric_memory_enabled=lambda: "enable-symm-mem" in arguments,
            debug_check_symmetric_mempool=lambda *_: None,
            device_group=MagicMock(),
            cpu_group=MagicMock(),
            **dict.fromkeys(("hpu_communicator", "xpu_communicator", "npu_communicator", "qr_comm")),
            pymscclpp_comm=self._mscclpp(),
            pcie_ipc_comm=self._over_pcie(deterministic),
        )
        flashinfer = self._flashinfer(made)
        # As bootstrap.py tags the group of attention, which is the whole tensor-parallel one here.
        stands_down = flashinfer.get("uses_cutedsl_ar_fusion", lambda: False)
        made._fi_workspace_hint = "attn_tp" if self.backend is not None and not stands_down() else None
        self.modules = {"sglang.srt.layers.flashinfer_comm_fusion": flashinfer}
        around = {
            **self.common,
            "outplace_all_reduce": self._outplace,
            "inplace_all_reduce": self._inplace,
            "flashinfer_allreduce": self._fused,
        }
        exec(_coordinators_methods(self.folder / DISTRIBUTED / "parallel_state.py"), around)
        methods: Any = around["GroupCoordinator"]
        for name in ("_can_use_flashinfer_allreduce", "_resolve_outplace_all_reduce_method"):
            setattr(made, name, getattr(methods, name).__get__(made))
        self.call = methods.all_reduce.__get__(made)
        return made

    def _take(self, name: str) -> Any:
        def taken(*_: object) -> None:
            self.taken = name

        return taken

    def _outplace(self, _: Any, group_name: str, outplace_all_reduce_method: str) -> None:
        self.taken = WAYS[outplace_all_reduce_method] or self.name

    def _inplace(self, _: Any, group_name: str) -> None:
        self.taken = "nccl"

    def _fused(self, _: Any, group_name: str) -> None:
        self.taken = "flashinfer"

    def all_reduce(self, tensor: Any) -> str:
        """Name of the implementation that the coordinator chooses for a tensor."""
        with stand_ins.modules(self.modules):
            try:
                self.call(tensor)
            except AttributeError as error:  # MSCCL++'s communicator was left incomplete: the engine ends
                if type(error.obj).__name__ != "PyMscclppCommunicator":
                    raise
                raise ValueError(str(error)) from error
        return self.taken


class _Algorithm(Enum):
    """The algorithms of the second version of the custom AllReduce, with SGLang's names."""

    ONE_SHOT_PUSH = 0
    TWO_SHOT_PUSH = 1
    ONE_SHOT_PULL = 2
    TWO_SHOT_PULL = 3

    @property
    def algo_name(self) -> str:
        return self.name


@cache
def _top_level(file: Path) -> set[str]:
    """Names that the top level of a file defines, without those that it imports."""
    return {name for node in ast.parse(file.read_text("utf-8")).body for name in stand_ins.defined(node)}


@cache
def _variables(file: Path) -> CodeType:
    """The code of the classes for variables, and of ``Envs`` with only the variables that decide here."""
    kept: list[ast.stmt] = []
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "Envs":
            node.body = [each for each in node.body if stand_ins.defined(each) & set(VARIABLES)]
            kept.append(node)
        elif isinstance(node, ast.ClassDef) and node.name in ("EnvField", "EnvBool", "EnvInt"):
            kept.append(node)
    return stand_ins.compiled(kept, file)


@cache
def _coordinators_methods(file: Path) -> CodeType:
    """The code of the coordinator class, with only the methods that choose."""
    methods = {"all_reduce", "_resolve_outplace_all_reduce_method", "_can_use_flashinfer_allreduce"}
    kept: list[ast.stmt] = []
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "GroupCoordinator":
            node.body = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name in methods]
            kept.append(node)
    return stand_ins.compiled(kept, file)
