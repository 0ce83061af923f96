"""A case with something changed, as ``nccl-tuner diff`` and ``whatif`` are told in words such as nodes=4."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tuner import layer, release
from tuner.case import MOST_NODES, Case
from tuner.environment import parse_assignments
from tuner.errors import BadInput, one_of
from tuner.topology.edit import EDITS


def changed(case: Case, assignments: Sequence[str]) -> Case:
    """The case after each KEY=VALUE, in order; keys are those of :data:`KEYS`, and NCCL's variables.

    Errors: BadInput for an unknown key or a value it cannot have; UnknownRelease, BadLayer.
    """
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not value:
            raise BadInput(f"change {assignment!r}: expected KEY=VALUE; keys: {', '.join(KEYS)}, or a NCCL variable")
        if key.startswith("NCCL_"):
            searched_with = release.load(case.nccl).table["environment"]["search"]
            case = replace(
                case, environment={**(case.environment or {}), **parse_assignments((assignment,))},
                search=case.search or key in searched_with,
            )
        elif key in KEYS:
            case = KEYS[key](case, value)
        else:
            raise BadInput(f"unknown key {key!r} of a change; {one_of(KEYS)}, or a NCCL variable")
    return case


def _nccl(case: Case, value: str) -> Case:
    return replace(case, nccl=release.load(value).name)


def _machine(case: Case, value: str) -> Case:
    """Another machine has all of its own: what completed the node before does not stay."""
    return replace(
        case, machine=value, topology=None, graphs=None, gpus_per_node=None, gpu=None, net_gbps=None,
        net_latency_us=None, others=(), hardware=None,
    )


def _nodes(case: Case, value: str) -> Case:
    return replace(case, nodes=_whole("nodes", value))


def _gpus_per_node(case: Case, value: str) -> Case:
    return replace(case, gpus_per_node=_whole("gpus-per-node", value))


def _layer(case: Case, value: str) -> Case:
    return replace(case, layer=layer.read(Path(value)))


def _hardware(key: str, case: Case, value: str) -> Case:
    if case.others:
        raise BadInput(f"change {key}={value}: not where nodes differ; valid there: {', '.join(SETTINGS)}")
    return replace(case, hardware={**(case.hardware or {}), key: value})


def _whole(key: str, value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= MOST_NODES:
        raise BadInput(f"change {key}={value}: valid: 1 to {MOST_NODES}")
    return int(value)


SETTINGS: dict[str, Callable[[Case, str], Case]] = {
    "nccl": _nccl,
    "machine": _machine,
    "nodes": _nodes,
    "gpus-per-node": _gpus_per_node,
    "layer": _layer,
}
KEYS: dict[str, Callable[[Case, str], Case]] = {
    **SETTINGS,
    **{key: partial(_hardware, key) for key in EDITS},
}
