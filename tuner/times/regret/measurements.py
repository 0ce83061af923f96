"""Arms as measurements: what a file of ``measure`` would hold of the same times, one for each communicator."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tuner.base.errors import BadMeasurement
from tuner.base.names import Op
from tuner.scenario import Scenario
from tuner.times.records.header import SIMULATED, Header
from tuner.times.records.samples import Combination, Measurements, Point, SampleBlock
from tuner.times.regret.records import MeasuredArms, MeasuredCall

BACKEND = "arms"  # of files of any kind, put together


def of_arms(placed: MeasuredArms) -> list[Measurements]:
    """One for each communicator and setting. Repeats are rounds; NCCL's own choice is as logged, or as emulated."""
    together: dict[tuple[int, int, str, tuple[tuple[str, str], ...]], list[MeasuredCall]] = defaultdict(list)
    for one in placed.calls:
        together[one.call.nodes, one.call.gpus_per_node, one.call.setting, one.environment].append(one)
    made = []
    for (nodes, gpus, _, environment), calls in together.items():
        scenario = placed.site.scenario(nodes, gpus, dict(environment))
        backend = SIMULATED if placed.simulated else BACKEND
        header = Header(backend, scenario=scenario, ranks=nodes * gpus, nodes=nodes, nccl=placed.site.nccl)
        made.append(Measurements(header, tuple(block for one in calls for block in _blocks(one))))
    return made


def of_communicator(placed: MeasuredArms, scenario: Scenario) -> Measurements:
    """Those of the communicator that ``scenario`` describes. BadMeasurement without any, or of several settings."""
    nodes = sum(kind.nodes for kind in scenario.kinds)
    own = [each for each in of_arms(placed) if (each.header.nodes, each.header.ranks) == (nodes, scenario.ranks)]
    if len(own) != 1:
        there = sorted({(one.call.nodes, one.call.ranks) for one in placed.calls})
        have = ", ".join(f"{ranks} ranks on {count} nodes" for count, ranks in there)
        why = "files of several settings" if own else f"measured on {have}"
        raise BadMeasurement(f"{why}; valid: measurements of {scenario.title}, with one setting")
    return own[0]


def _blocks(one: MeasuredCall) -> Iterator[SampleBlock]:
    call, rounds = one.call, Counter[Combination | None]()
    point = Point(call.collective, call.bytes, call.dtype, Op.sum, call.in_place)
    for arm in one.arms:
        requested = None if arm.is_default else arm.combination
        executed = arm.logged or (arm.combination if arm.is_default else None)
        for time_us in arm.times_us:
            yield SampleBlock(point, requested, executed, (time_us,), round=rounds[requested])
            rounds[requested] += 1


def sources(several: Sequence[Measurements]) -> str:
    """What was measured, in words."""
    return "; ".join(dict.fromkeys(each.header.origin for each in several))
