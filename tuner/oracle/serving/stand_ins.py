"""Stand-ins for PyTorch and GPUs that an engine's own functions run on: tensors without data, groups, a platform."""

import ast
import sys
from collections.abc import Collection, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock


class Type:
    """A data type of PyTorch: its name, and the bytes of an element."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize


TYPES = {
    each.name: each
    for each in (Type("float32", 4), Type("float16", 2), Type("bfloat16", 2), Type("int32", 4), Type("uint8", 1))
}


class Device:
    """A GPU: the first of its process."""

    type = "cuda"

    def __init__(self, *_: object) -> None:
        self.index = 0


DEVICE = Device()


class Tensor:
    """A contiguous tensor of some rows and columns on the first GPU."""

    is_cuda, is_cpu, ndim = True, False, 2

    def __init__(self, rows: int, columns: int, dtype: Type) -> None:
        self.shape, self.dtype, self.device = (rows, columns), dtype, DEVICE
        self.nbytes = rows * columns * dtype.itemsize

    def numel(self) -> int:
        """Number of elements."""
        return self.shape[0] * self.shape[1]

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def dim(self) -> int:
        """Number of dimensions: rows and columns."""
        return 2

    def is_contiguous(self) -> bool:
        """True: every stand-in tensor is contiguous."""
        return True


def of_bytes(nbytes: int, dtype: str, hidden_size: int | None) -> Tensor:
    """A tensor of ``nbytes`` bytes, in rows of ``hidden_size`` elements (of one element if it is None)."""
    elements = nbytes // TYPES[dtype].itemsize
    columns = hidden_size or 1
    return Tensor(elements // columns, columns, TYPES[dtype])


def torch(asked: Mapping[str, Any]) -> Any:
    """A stand-in for the module ``torch``; names that it does not define are mocks that do nothing."""
    made = MagicMock()
    made.__version__ = "2.14.0"
    for each in TYPES.values():
        setattr(made, each.name, each)
    made.float = TYPES["float32"]
    made.device, made.Tensor = Device, Tensor
    made.tensor = lambda values=None, dtype=None, device=None: _small(values, dtype)
    made.empty = lambda *size, dtype=None, device=None: _empty(size, dtype)
    made.compiler.is_compiling.return_value = False
    made.cuda.can_device_access_peer.return_value = asked["peer_access"]
    made.cuda.device_count.return_value = 16
    made.cuda.is_current_stream_capturing.return_value = asked["graph"]
    made.cuda.get_device_capability = lambda *_: divmod(asked["capability"], 10)
    made.cuda.get_device_properties.return_value = SimpleNamespace(multi_processor_count=132)
    return made


def _empty(size: tuple[Any, ...], dtype: Any) -> Any:
    match size:
        case ((int(rows), int(columns)),):
            return Tensor(rows, columns, dtype)
    return _small(None, dtype)


def _small(values: Any, dtype: Any) -> Any:
    value = values[0] if isinstance(values, list) and values else values
    return MagicMock(item=lambda: value, element_size=lambda: dtype.itemsize if dtype else 4, __int__=lambda _: 0)


def distributed(asked: Mapping[str, Any]) -> Any:
    """A stand-in for ``torch.distributed``, in which every other rank answers like this one."""
    made = MagicMock()
    made.get_world_size = lambda group=None: asked["ranks"]
    made.get_rank = lambda group=None: 0
    made.get_backend = lambda group=None: "gloo"
    made.Backend.NCCL = "nccl"
    made.get_process_group_ranks = lambda group=None: list(range(asked["ranks"]))
    return made


def has_group_multicast(asked: Mapping[str, Any]) -> bool:
    """Whether multicast reaches memory of the whole group."""
    return bool(asked["multicast"] and (asked["nodes"] == 1 or asked["one_domain"]))


def symmetric_memory(asked: Mapping[str, Any]) -> Any:
    """A stand-in for torch's symmetric memory, whose rendezvous fails across nodes that are not in one NVLink
    domain."""

    def rendezvous(*_: object) -> Any:
        if asked["nodes"] > 1 and not asked["one_domain"]:
            raise RuntimeError("the ranks are on several nodes")
        return MagicMock(multicast_ptr=int(has_group_multicast(asked)))

    return SimpleNamespace(empty=lambda *_, **__: MagicMock(), rendezvous=rendezvous)


def arguments(asked: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that the user gave the engine, by name; an argument without a value gets an empty text."""
    return dict(each.partition("=")[::2] for each in asked["arguments"])


def fusion_workspace(asked: Mapping[str, Any], backend: str, max_token_num: int, hidden_dim: int) -> Any:
    """A stand-in for FlashInfer's workspace: the backend mnnvl needs multicast in the whole group, trtllm needs one
    node with peer access.

    A tensor fits if it has at most the elements that the workspace was made for (flashinfer-python 0.7.2 and
    0.7.2.post1, by source; with mnnvl it may hold more).
    """
    works = has_group_multicast(asked) if backend == "mnnvl" else asked["nodes"] == 1 and asked["peer_access"]
    if not works:
        raise RuntimeError("this backend does not work here")
    elements = max_token_num * hidden_dim
    fits = lambda num_tokens, hidden_dim, **_: num_tokens * hidden_dim <= elements  # noqa: E731
    return SimpleNamespace(backend=backend, mc_ptr=1, is_buffer_size_sufficient=fits)


def pcie_workspace(asked: Mapping[str, Any]) -> type:
    """A stand-in for FlashInfer's workspace of its AllReduce over PCIe (0.7.2.post1, pcie_ipc_policy.py, by source).

    It supports tensors of whole packs of 16 bytes, at least one pack per rank, with at most ``max_numel`` elements.
    Making it raises ValueError, except on one node whose GPUs map each other's memory.
    """

    class Workspace:
        def __init__(self, max_numel: int, **_: object) -> None:
            if asked["nodes"] > 1 or not asked["peer_access"]:
                raise ValueError("the GPUs do not map each other's memory")
            self.max_numel = max_numel

        def supports(self, tensor: Tensor) -> bool:
            packed = tensor.nbytes % 16 == 0 and tensor.nbytes >= 16 * asked["ranks"]
            return packed and tensor.numel() <= self.max_numel

        def rebind_stream(self) -> None: ...

        def tune(self, *_: object, **__: object) -> None: ...

        def prepare(self, *_: object, **__: object) -> None: ...

    return Workspace


@cache
def part(file: Path, names: frozenset[str]) -> CodeType:
    """The code of those statements at a file's top level that define ``names``. KeyError if the file does not define
    one of them."""
    kept, missing = [], set(names)
    for node in ast.parse(file.read_text("utf-8")).body:
        if found := defined(node) & names:
            kept.append(node)
            missing -= found
    if missing:
        raise KeyError(f"{file.name} has no {', '.join(sorted(missing))}")
    return compiled(kept, file)


def compiled(statements: list[ast.stmt], file: Path) -> CodeType:
    """Compiles statements of a file, without their type annotations."""
    tree = _without_annotations(ast.Module(statements, []))
    return compile(ast.fix_missing_locations(tree), str(file), "exec")


def defined(node: ast.stmt) -> set[str]:
    """Names that a statement defines: of a function, a class or variables."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _without_annotations(tree: ast.Module) -> ast.Module:
    """The tree without type annotations, which would name things without a stand-in; annotated fields become fields of
    type object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            taken = node.args
            for each in (*taken.args, *taken.kwonlyargs, *taken.posonlyargs, taken.vararg, taken.kwarg):
                if each is not None:
                    each.annotation = None
        if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "NamedTuple" for b in node.bases):
            for field in (each for each in node.body if isinstance(each, ast.AnnAssign)):
                field.annotation = ast.Name("object", ast.Load())
        elif isinstance(body := getattr(node, "body", None), list):
            node.body = [_plain(each) for each in body]  # type: ignore[attr-defined]
    return tree


def _plain(node: ast.stmt) -> ast.stmt:
    if not isinstance(node, ast.AnnAssign):
        return node
    return ast.Assign([node.target], node.value or ast.Constant(None))


def run(file: Path, names: Collection[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the parts of a file that define ``names``, with ``given`` as their global names; returns all global
    names."""
    made = {"__name__": file.stem, **given}
    exec(part(file, frozenset(names)), made)
    return made


@contextmanager
def modules(given: Mapping[str, Mapping[str, Any]]) -> Any:
    """Inside the block, these modules and their parents replace all other modules with the same names."""
    names = {name[: end or None] for name in given for end in [*_dots(name), 0]}
    before = {name: sys.modules.get(name) for name in names}
    for name in names:
        module = ModuleType(name)
        module.__dict__.update(given.get(name, {}))
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in before.items():  # type: ignore[assignment]
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _dots(name: str) -> list[int]:
    return [place for place, letter in enumerate(name) if letter == "."]
