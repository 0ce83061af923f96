"""Stand-ins for MSCCL++ and msgspec that SGLang's communicator of MSCCL++ runs on: names, and ranges of sizes."""

import copy
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

ONE_NODES = (
    "default_allreduce_nvls_packet",
    "default_allreduce_packet",
    "default_allreduce_rsag_zero_copy",
    "default_allreduce_nvls_zero_copy",
)


class UntypedRecord:
    """A stand-in for msgspec's Struct, without types: its fields are all names that its classes define, except
    functions."""

    def __init_subclass__(cls, **_: object) -> None: ...

    def __init__(self, *values: object, **named: object) -> None:
        given = {**dict(zip(_fields(type(self)), values, strict=False)), **named}
        for name in _fields(type(self)):
            default = getattr(type(self), name)
            setattr(self, name, given.get(name, default() if isinstance(default, _Made) else default))
        self.__post_init__()

    def __post_init__(self) -> None: ...


class _Made:
    """A field whose default value is made anew for each record."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    def __call__(self) -> object:
        return self.make()


def _fields(kind: type) -> list[str]:
    return [
        name
        for each in reversed(kind.__mro__)
        for name, value in vars(each).items()
        if each not in (object, UntypedRecord) and not name.startswith("__")
        if isinstance(value, _Made) or not (callable(value) or isinstance(value, staticmethod))
    ]


def _replaced(record: Any, **changed: object) -> Any:
    made = copy.copy(record)
    for name, value in changed.items():
        setattr(made, name, value)
    made.__post_init__()
    return made


MSGSPEC = SimpleNamespace(
    Struct=UntypedRecord,
    field=lambda default_factory: _Made(default_factory),
    structs=SimpleNamespace(replace=_replaced),
)


class _Algorithm:
    """One of the library's algorithms; it runs on several nodes if it was compiled for them."""

    def __init__(self, name: str, several_nodes: bool, sizes: tuple[int, int] = (0, 0)) -> None:
        self.name, self.several_nodes, self.message_size_range = name, several_nodes, sizes

    def set_message_size_range(self, low: int, high: int) -> None:
        """Sets the smallest and the largest size in bytes."""
        self.message_size_range = low, high

    def reset(self) -> None: ...


class _Collective:
    """A collective of MSCCL++'s language, by its name."""

    name = ""

    def __init__(self, ranks: int, chunk_factor: int, in_place: bool) -> None:
        self.chunk_factor = chunk_factor


def _compiled(_: object, spec: Any, __: int, **___: object) -> _Algorithm:
    sizes = getattr(spec, "min_message_size", 0), getattr(spec, "max_message_size", 0)
    return _Algorithm(spec.name, True, sizes)


def library(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Stand-ins for the library's modules, by name. Each node of the group is a domain in which CUDA's memory handles
    work."""
    names = {"AllReduce": "allreduce", "AllGather": "allgather", "ReduceScatter": "reducescatter"}
    collectives = {kind: type(kind, (_Collective,), {"name": name}) for kind, name in names.items()}
    language = SimpleNamespace(
        AlgoSpec=SimpleNamespace, collectives=SimpleNamespace(**collectives), ReplicationPolicy=MagicMock()
    )
    of_domain = asked["ranks"] // asked["nodes"]
    made = MagicMock(language=language, compile=_compiled)
    made.is_nvls_supported.return_value = asked["multicast"]
    made.CommGroup.return_value = MagicMock(nranks_per_ipc_domain=of_domain)
    extension = MagicMock()
    builder = extension.AlgorithmCollectionBuilder.return_value
    builder.build_default_algorithms.side_effect = lambda **_: [_Algorithm(name, False) for name in ONE_NODES]
    return {"mscclpp": made, "mscclpp.ext": extension, "mscclpp.default_algos": MagicMock()}


def fails(candidate: Any, asked: Mapping[str, Any]) -> bool:
    """Whether an algorithm, or SGLang's record of it, cannot run: it is for one node and the group has several."""
    algorithm = getattr(candidate, "algorithm", candidate)
    return asked["nodes"] > 1 and not algorithm.several_nodes
