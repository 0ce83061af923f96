"""Applies changes to a scenario, written like nodes=4, as ``nccl-tuner diff`` takes them."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tuner import release
from tuner.answers.symmetric import AnyPick, ratio
from tuner.answers.tuners import with_tuner
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.numerics import is_time
from tuner.base.records import json_form
from tuner.emulator.aws_ofi_nccl.tuner import AwsTuner
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.machine.gpus import PeerToPeer
from tuner.machine.topology.edit import EDITS, adds_up, together
from tuner.release.environment import parse_assignments
from tuner.scenario import MOST_NODES, Scenario
from tuner.times.costmodels.operations import bus_gbs

if TYPE_CHECKING:  # with the time model, which a plain pick does without
    from tuner.answers.diff import CalibratedChange, Side


def changed(scenario: Scenario, assignments: Sequence[str]) -> Scenario:
    """The scenario after applying each KEY=VALUE in order; a key is one of :data:`KEYS` or a variable of NCCL.

    BadInput if a key is unknown, has an impossible value, or has two values. UnknownRelease if the value is a release
    that is not known, BadConstants if it is a file of constants that cannot be used.
    """
    for several in _values_of_keys(assignments).values():
        if len(several) > 1:
            raise BadInput(
                f"{' and '.join(several)} change the same key: give one of them, or compare each with 'nccl-tuner diff'"
            )
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not value:
            raise BadInput(
                f"change {assignment!r} is not of the form KEY=VALUE; keys: {', '.join(KEYS)}, or an NCCL variable"
            )
        if key.startswith("NCCL_"):
            scenario = replace(
                scenario,
                environment={**(scenario.environment or {}), **parse_assignments((assignment,))},
            )
        elif key in KEYS:
            scenario = KEYS[key](scenario, value)
        else:
            raise BadInput(f"{key!r} is not a key that can be changed; {one_of(KEYS)}, or an NCCL variable")
    return scenario


def each_of(assignments: Sequence[str]) -> list[tuple[str, ...]]:
    """The sets of changes to compare with: if keys have several values (``nodes=4 nodes=8``), every combination of
    these.

    Changes of devices by name add up instead (``remove-nic=mlx5_0 remove-nic=mlx5_1``).
    """
    several = [values for values in _values_of_keys(assignments).values() if len(values) > 1]
    chosen = [set(one) for one in product(*several)]
    of_several = {value for values in several for value in values}
    return [
        tuple(each for each in dict.fromkeys(assignments) if each not in of_several or each in one) for one in chosen
    ]


def _values_of_keys(assignments: Sequence[str]) -> dict[str, list[str]]:
    """The distinct values of each key."""
    by_key: dict[str, list[str]] = {}
    for assignment in dict.fromkeys(assignments):
        key, _, value = assignment.partition("=")
        if not adds_up(key, value):
            by_key.setdefault(key, []).append(assignment)
    return by_key


def _nccl(scenario: Scenario, value: str) -> Scenario:
    return replace(scenario, nccl=release.load(value).name)


def _machine(scenario: Scenario, value: str) -> Scenario:
    """The scenario on another machine, without the details of the old machine and without the tuner of its images."""
    other = replace(
        scenario,
        machine=value,
        topology=None,
        logged=None,
        graphs=None,
        gpus_per_node=None,
        trays=None,
        gpu=None,
        net_gbps=None,
        net_latency_us=None,
        others=(),
        hardware=None,
    )
    return with_tuner(other, None) if isinstance(scenario.tuner, AwsTuner) else other


def _gpus_per_node(scenario: Scenario, value: str) -> Scenario:
    if _has_trays(scenario) is not None:
        raise BadInput(
            f"change gpus-per-node={value}: this machine is made of trays; change trays or gpus-per-tray instead"
        )
    return replace(scenario, gpus_per_node=_whole("gpus-per-node", value))


def _has_trays(scenario: Scenario) -> int | None:
    return None if scenario.machine is None else catalogue.load(scenario.machine).trays


def _trays(scenario: Scenario, value: str) -> Scenario:
    has = _has_trays(scenario)
    if has is None:
        raise BadInput(f"change trays={value}: only machines that are NVLink domains have trays: use hosts-per-domain")
    if not 1 <= _whole("trays", value) <= has:
        raise BadInput(f"change trays={value}: valid are 1 to {has}")
    return replace(scenario, trays=int(value))


def _gpus_per_tray(scenario: Scenario, value: str) -> Scenario:
    if _has_trays(scenario) is None:
        raise BadInput(
            f"change gpus-per-tray={value}: only machines that are NVLink domains have trays: use gpus-per-node"
        )
    return replace(scenario, gpus_per_node=_whole("gpus-per-tray", value))


def _counted(key: str, scenario: Scenario, value: str) -> Scenario:
    return replace(scenario, **{key.replace("-", "_"): _whole(key, value)})  # type: ignore[arg-type]


def _constants(scenario: Scenario, value: str) -> Scenario:
    from tuner.emulator import fitted_constants

    return replace(scenario, fitted_constants=fitted_constants.read(Path(value)))


def _hardware(key: str, scenario: Scenario, value: str) -> Scenario:
    if scenario.others:
        raise BadInput(f"change {key}={value}: this cannot be changed if nodes differ; what can: {', '.join(SETTINGS)}")
    before = scenario.hardware or {}
    return replace(scenario, hardware={**before, key: together(key, before.get(key), value)})


def _peer_to_peer(scenario: Scenario, value: str) -> Scenario:
    if value == "off":  # which NCCL has a variable for
        return replace(scenario, environment={**(scenario.environment or {}), "NCCL_P2P_DISABLE": "1"})
    if value not in list(PeerToPeer):
        raise BadInput(f"change p2p={value}; {one_of([*PeerToPeer, 'off'])}")
    return _hardware("p2p", scenario, value)


def _unset(scenario: Scenario, value: str) -> Scenario:
    own, of_machine = scenario.environment or {}, set[str]()
    for kind in scenario.kinds:
        of_machine |= set(catalogue.load(kind.machine).environment if kind.machine else {}) - scenario.unset
    if value not in own and value not in of_machine:
        set_ = sorted({*own, *of_machine})
        raise BadInput(f"change unset={value}: this variable is not set; {one_of(set_) if set_ else 'no variable is'}")
    return replace(
        scenario,
        environment={name: given for name, given in own.items() if name != value},
        unset=scenario.unset | ({value} & of_machine),
    )


def _whole(key: str, value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= MOST_NODES:
        raise BadInput(f"change {key}={value}: valid are 1 to {MOST_NODES}")
    return int(value)


SETTINGS: dict[str, Callable[[Scenario, str], Scenario]] = {
    "nccl": _nccl,
    "machine": _machine,
    "nodes": partial(_counted, "nodes"),
    "gpus-per-node": _gpus_per_node,
    "trays": _trays,
    "gpus-per-tray": _gpus_per_tray,
    "hosts-per-domain": partial(_counted, "hosts-per-domain"),
    "ranks-per-gpu": partial(_counted, "ranks-per-gpu"),
    "constants": _constants,
    "unset": _unset,
    "tuner": with_tuner,
}
KEYS: dict[str, Callable[[Scenario, str], Scenario]] = {
    **SETTINGS,
    **{key: partial(_hardware, key) for key in EDITS},
    "p2p": _peer_to_peer,
}


@dataclass(frozen=True, slots=True)
class AtSize:
    """Both picks at one size; ``ratio`` is the predicted time after over the time before, each by its own side's model.

    The ratio is None if either pick bypasses the algorithms, since its time comes from another model; bandwidths are
    None if no model gives a time. ``calibrated`` are calibrated times, if they were asked for.
    """

    collective: str
    bytes: int
    before: AnyPick
    after: AnyPick
    busbw_gbs_before: float | None
    busbw_gbs_after: float | None
    ratio: float | None
    calibrated: "CalibratedChange | None" = field(default=None, metadata=json_form(optional=True))


def at_sizes(before: "Side", after: "Side", request: Request, sizes: Sequence[int]) -> list[AtSize]:
    """Picks of both sides at ``sizes`` (nBytes), as rank 0 sees them. The messages of NoAlgorithm and BadInput begin
    with the title of the side that raised them.
    """
    nbytes = np.array(sizes, np.uint64)
    old, new = (side.picks(request, nbytes) for side in (before, after))
    return [
        AtSize(
            request.collective.name,
            int(size),
            was,
            becomes,
            _busbw_gbs(before, request, size, was),
            _busbw_gbs(after, request, size, becomes),
            ratio((was, was.time_us), (becomes, becomes.time_us)),
        )
        for size, was, becomes in zip(sizes, old, new, strict=True)
    ]


def _busbw_gbs(side: "Side", request: Request, size: int, pick: AnyPick) -> float | None:
    if not is_time(pick.time_us):
        return None
    return float(bus_gbs(request.collective, size, pick.time_us, side.selection.communicator.ranks))
