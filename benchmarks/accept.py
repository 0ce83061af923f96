"""How often 'nccl-tuner accept' is right: public runs of healthy machines, and faults planted behind noisy times.

Planted: libnccl searches the graphs of a topology with the fault in it, the time model says what calls take on them,
and that is what was "measured", with a start, an offset that all sizes have in common and noise. What is judged knows
nothing of the fault. Prints, and checks nothing. It fits to the frozen splits, too, and judges what they hold out.
``make acceptance`` keeps what came of it in docs/acceptance.json, which docs/accept.md is made of.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.scripts import write_judging
from tuner.answers.changes import changed
from tuner.base.errors import TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.base.sizes import human_bytes
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.times import measured, placement
from tuner.times.acceptance import curves, diagnosis, judge, public_runs
from tuner.times.acceptance.accept import Acceptance, AcceptOptions, accept
from tuner.times.acceptance.curves import Curve, CurveKind
from tuner.times.acceptance.expected import ERROR_BYTES, Expectation, by_public_runs
from tuner.times.acceptance.faults import Fault, Resource
from tuner.times.acceptance.judge import SizeVerdict
from tuner.times.acceptance.limits import ClassNearness, TimeLimits
from tuner.times.acceptance.public_runs import Network, PublicCurve
from tuner.times.calibration import calibrate
from tuner.times.calibration.accuracy import splits
from tuner.times.calibration.accuracy.splits import Split
from tuner.times.calibration.calibrate import Widths
from tuner.times.calibration.measured_calls import one_way_runs
from tuner.times.measured.formats import Given
from tuner.times.measured.header import MeasuredHealth
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.placement import ConfiguredShape, Site
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel import predict
from tuner.times.timemodel.features import Array

RUNS = 40
SIZES = np.array([1 << power for power in range(13, 34)], np.uint64)
REQUESTS = [
    Request(collective, DataType.float16, Op.sum)
    for collective in (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
]
MACHINES = (
    ("dgx-a100", 1, "2.27.3"),
    ("dgx-a100", 2, "2.22.3"),
    ("dgx-h100", 1, "2.29.2"),
    ("dgx-h100", 2, "2.29.2"),
    ("dgx-b200", 1, "2.28.9"),
    ("dgx-b200", 4, "2.29.7"),
    ("alps", 1, "2.23.4"),
    ("alps", 8, "2.23.4"),
    ("pcie-l40s", 1, "2.28.9"),
)
SHOWS = 0.03  # of the largest sizes' time, natural logarithm: less than this no fault can be seen by
HOP = 1.4  # of each step between nodes, where data go through the host's memory; no public numbers of it
NOISE = 0.02


@dataclass(frozen=True)
class Planted:
    """A fault: in words, what it should be called, and the changes that ``diff`` would take.

    ``by_hand``: instead of these, where NCCL's way with the change is not emulated.
    """

    what: str
    names: tuple[str, ...]
    changes: tuple[str, ...]
    hop: float = 1.0
    by_hand: Fault | None = None


def planted(scenario: Scenario) -> Iterator[Planted]:
    topology = scenario.resolve().own.topology
    adapters = len({net.dev for net in topology.nets})
    links = max(sum(link.count for link in gpu.nvlinks) for gpu in topology.gpus)
    yield Planted("one adapter less", ("adapters",), (f"nics={max(adapters - 1, 1)}",))
    if links:
        yield Planted("half of the NVLinks", ("NVLinks",), (f"nvlinks={links // 2}",))
    yield Planted("NVLS off", ("NVLS",), ("NCCL_NVLS_ENABLE=0",))
    if links and scenario.nodes == 1:
        through_host = Fault(Resource.p2p, "", intra=0.08, without_nvls=True)  # 30 GB/s of 360
        words = "P2P off, 8 % of NVLink's bandwidth left"
        yield Planted(words, ("P2P", "NVLinks"), (words,), by_hand=through_host)
    else:
        yield Planted("P2P off", ("P2P",), ("NCCL_P2P_DISABLE=1",))
    yield Planted("PCIe at half or less", ("PCIe link", "adapters"), ("pcie=4x8",))
    yield Planted("GPUDirect off", ("GPUDirect",), ("NCCL_NET_GDR_LEVEL=LOC",), HOP)


def noisy(time_us: Array, log_half: Array, offset: float, rng: np.random.Generator) -> Array:
    """Times of one curve: off as the intervals say that healthy ones are, mostly alike at all sizes."""
    off = (0.8 * offset + 0.6 * rng.normal()) * log_half / 1.645
    times: Array = time_us * np.exp(off + rng.normal(0, NOISE, len(time_us))) + abs(rng.normal(0, 4))
    return times


def truth(expectation: Expectation, scenario: Scenario, hop: float) -> Mapping[Request, Array]:
    """What calls take, by the calibration of the healthy machine on these graphs; else by NCCL's model."""
    selection = Selection(scenario.communicator())
    own = expectation.scenario
    try:
        model = predict.of_communicator(Selection(own.communicator()), own.machine)
    except TunerError:
        picked = {request: selection.pick(request, SIZES).time_us.astype(np.float64) for request in REQUESTS}
        return {request: times_us * 1.2 for request, times_us in picked.items()}
    slower = replace(
        model.calibration,
        parameters={
            name: value * (hop if name.startswith(("net_", "tree_", "nvls_tree_")) and name.endswith("hop_us") else 1)
            for name, value in model.calibration.parameters.items()
        },
    )
    model = predict.TimeModel(predict.CalibrationChoice(slower, same_machine=True, reason=""), selection)
    return {request: model.of_picks(request, selection.pick(request, SIZES)).time_us for request in REQUESTS}


def made(expectation: Expectation, fault: Planted) -> Mapping[Request, Array]:
    """What calls take with a planted fault."""
    scenario = expectation.scenario
    if fault.by_hand is not None:
        shape = ConfiguredShape(scenario.nodes, scenario.gpus())
        return {each: expectation.times(CurveKind(shape, each), SIZES, fault.by_hand).time_us for each in REQUESTS}
    return truth(expectation, changed(scenario, fault.changes) if fault.changes else scenario, fault.hop)


def planted_faults() -> Iterator[dict[str, Any]]:
    """What came of each fault on each communicator, with which runs failed and how they were named."""
    totals: Counter[str] = Counter()
    for number, (machine, nodes, nccl) in enumerate(MACHINES):
        rng = np.random.default_rng(number)
        scenario = describe(machine, nodes=nodes, nccl=nccl)
        expectation, shape = Expectation(scenario), ConfiguredShape(nodes, scenario.gpus())
        healthy = {request: expectation.times(CurveKind(shape, request), SIZES) for request in REQUESTS}
        print(f"{nodes} x {machine}, NCCL {nccl}: {'; '.join(expectation.reasons)}")
        faults = [Planted("nothing", (), ()), *planted(scenario)]
        for fault in faults:
            words = " ".join(fault.changes) or "healthy"
            row = {"planted": fault.what, "machine": machine, "nodes": nodes, "nccl": nccl, "runs": RUNS}
            try:
                times = made(expectation, fault)
            except TunerError as error:
                print(f"  {words:28} not emulated: {str(error)[:80]}")
                continue
            centre = truth(expectation, scenario, 1.0)
            loss = max(float(np.log(times[each] / centre[each])[-3:].max()) for each in REQUESTS)
            if fault.changes and loss < SHOWS:
                print(f"  {words:28} does not show: {loss:.0%} at the largest sizes")
                continue
            found: Counter[str] = Counter()
            for _ in range(RUNS):
                offset = rng.normal()
                those = [
                    Curve(
                        "planted",
                        CurveKind(shape, request),
                        SIZES,
                        noisy(times[request], healthy[request].log_half, offset, rng),
                        tuple((line,) for line in range(len(SIZES))),
                    )
                    for request in REQUESTS
                ]
                judged = [
                    judge.judge(each, healthy[request], np.zeros(len(SIZES)))
                    for request, each in zip(REQUESTS, those, strict=True)
                ]
                if all(each.passes for each in judged):
                    found["left_open"] += not all(each.judged for each in judged)
                    continue
                found["failed"] += 1
                named = diagnosis.diagnose(those, expectation, scenario.resolve().own.topology)
                found["first"] += bool(named) and named[0].resource in fault.names
                found["among"] += any(each.resource in fault.names for each in named)
            yield {**row, **{key: found[key] for key in ("failed", "left_open", "first", "among")}}
            if not fault.changes:
                print(f"  {words:28} false fail {found['failed'] / RUNS:.0%}")
                totals.update({"healthy": RUNS, "false fail": found["failed"]})
                continue
            print(
                f"  {words:28} loss {np.expm1(loss):.0%}, cannot be judged {found['left_open'] / RUNS:.0%}, "
                f"false pass {1 - (found['failed'] + found['left_open']) / RUNS:.0%}, "
                f"right first {found['first']}, among those named {found['among']} of {found['failed']}"
            )
            totals.update({"faulty": RUNS, "false pass": RUNS - found["failed"] - found["left_open"], **found})
    print(
        f"all: false fail {totals['false fail'] / totals['healthy']:.1%} of {totals['healthy']} healthy runs, "
        f"false pass {totals['false pass'] / totals['faulty']:.1%} of {totals['faulty']} faulty ones; "
        f"the resource is right first in {totals['first'] / totals['failed']:.0%}, among those named in "
        f"{totals['among'] / totals['failed']:.0%} of the failed ones"
    )


def shipped_runs() -> Iterator[dict[str, Any]]:
    """Each public run by itself, with the shipped calibrations: most were fitted to them, see ``held_out``."""
    totals: Counter[tuple[str, str]] = Counter()
    for name in measured.names():
        table = measured.load(name)
        if not table.header.machine or not table.header.nccl:
            continue
        runs = {(row.run, row.nodes, row.gpus_per_node) for row in table.blocks if not row.point.is_point_to_point}
        for run in sorted(runs):
            rows = tuple(row for row in table.blocks if (row.run, row.nodes, row.gpus_per_node) == run)
            what = _what(table, rows[0])
            try:
                found = _accepted(replace(table, blocks=rows))
            except TunerError:
                continue
            totals[what, _said(found)] += 1
            if _said(found) != ("passed" if what == "healthy" else "failed"):
                slow = sum(size.verdict is SizeVerdict.slow for size in found.sizes)
                print(f"{name} {run}, {what}: {_said(found)}, {slow} of {len(found.sizes)} slow")
            if what != "healthy":
                totals[what, "named"] += any(each.resource in NAMED[what] for each in found.diagnosis)
    yield from _told(("healthy", *NAMED), totals)


def _told(kinds: Iterable[str], totals: Mapping[tuple[str, str], int]) -> Iterator[dict[str, Any]]:
    for what in kinds:
        counts = {key: totals.get((what, key), 0) for key in ("passed", "left_open", "failed", "named")}
        print(f"public runs, {what}: {counts}")
        yield {"what": what, **counts}


def _said(found: Acceptance) -> str:
    return _verdict_of(not (found.judged and not found.passes), found.judged)


def _verdict_of(passes: bool, judged: bool) -> str:
    return "failed" if not passes else "passed" if judged else "left_open"


LARGE_BYTES = 1 << 22
SLOW = "known to be slow"
UNKNOWN = "nobody says how healthy"
OTHERWISE = "network set up in another way"  # than the calibration of the site was fitted to
NAMED = {
    "TCP sockets": (Resource.sockets,),
    "no GDRCopy": (Resource.network_latency, Resource.gpu_direct),
    SLOW: (Resource.gpu_direct, Resource.adapters),
    UNKNOWN: (),
    OTHERWISE: (),
}


def _what(table: Measurements, row: SampleBlock) -> str:
    if row.nodes > 1 and table.network_of(row) == placement.SOCKETS:
        return "TCP sockets"
    without = row.nodes > 1 and table.environment_of(row).get("FI_HMEM_CUDA_USE_GDRCOPY") == "0"
    health = table.health_of(row)
    if health is MeasuredHealth.degraded or any(trap.startswith("Not healthy") for trap in table.header.traps):
        return SLOW
    of_one_way = one_way_runs().get(table.name)
    otherwise = row.nodes > 1 and of_one_way is not None and row.run not in of_one_way
    if without or otherwise:
        return "no GDRCopy" if without else OTHERWISE
    return UNKNOWN if health is MeasuredHealth.unknown else "healthy"


def _accepted(table: Measurements, like: Measurements | None = None, calibration: str | None = None) -> Acceptance:
    with tempfile.TemporaryDirectory() as folder:
        path, reference = Path(folder) / "given.csv", None
        measured.write(path, table)
        if like is not None:
            measured.write(reference := Path(folder) / "like.csv", like)
        scenario = describe(table.header.machine, nccl=table.header.nccl)
        return accept([path], AcceptOptions(scenario, Given(), None if like else calibration, like=reference))


def _by_others(curve: PublicCurve, factor: float = 1.0) -> tuple[str, str]:
    """The verdict on a curve by other sites' runs, with its times from 4 MiB on longer; and which runs decide.

    The limits are learnt without the curve's site as well.
    """
    sizes = np.array(curve.bytes, np.uint64)
    times = np.array(curve.time_us) * np.where(sizes >= LARGE_BYTES, factor, 1.0)
    expected = by_public_runs(write_judging.compared(curve), _others(curve), by=_limits_without(curve.site))
    if expected is None:
        return "left_open", "nothing"
    request = Request(Collective[curve.collective], DataType.float32, Op.sum)
    kind = CurveKind(ConfiguredShape(curve.nodes, curve.gpus_per_node), request)
    lines = tuple((at,) for at in range(len(sizes)))
    found = judge.judge(Curve(curve.table, kind, sizes, times, lines), expected, np.zeros(len(sizes)))
    return _verdict_of(found.passes, found.judged), expected.whose[-1].value


def runs_between_nodes() -> list[PublicCurve]:
    """The list of runs: all of classes with three others, one of every kind of machine and network, all faulty ones.

    Of each site, shape and collective it is the run that chose by itself and ends at the largest size.
    """
    chosen: dict[object, PublicCurve] = {}
    for each in public_runs.shipped():
        alone = each.nodes > 1 and not each.forced and not each.in_place and each.gpus_per_node <= 16
        if not alone or each.machine.network is Network.sockets or each.bytes[-1] < LARGE_BYTES:
            continue
        if each.collective in public_runs.EXCHANGES:
            continue
        key = each.site, each.nodes, each.gpus_per_node, each.collective, each.health
        if key not in chosen or (each.bytes[-1], -each.bytes[0]) > (chosen[key].bytes[-1], -chosen[key].bytes[0]):
            chosen[key] = each
    of_class = {each: _of_class(each) >= public_runs.LEAST_RUNS for each in chosen.values()}
    kinds: set[object] = set()
    listed = []
    for each, several in sorted(of_class.items(), key=lambda one: -one[0].gpus_per_node):
        kind = each.machine.generation, each.machine.network, each.nodes > 2
        if several or not each.is_healthy or kind not in kinds:
            listed.append(each)
        if each.is_healthy:
            kinds.add(kind)
    return listed


def _of_class(curve: PublicCurve) -> int:
    """How many runs of other sites are of the class of a curve."""
    return len(
        {
            each.name
            for each in public_runs.matching(write_judging.compared(curve), _others(curve), ClassNearness.same_class)
        }
    )


def _others(curve: PublicCurve) -> list[PublicCurve]:
    return [each for each in public_runs.shipped() if each.site != curve.site]


@cache
def _limits_without(site: str) -> TimeLimits:
    return write_judging.learnt(write_judging.seen(site))


def unseen() -> Iterator[dict[str, Any]]:
    """Each run of the list by the runs of all other sites: as it is, and at half of its speed from 4 MiB on."""
    for curve in runs_between_nodes():
        said, by = _by_others(curve)
        half, _ = _by_others(curve, 2.0)
        yield {
            "table": curve.table,
            "run": curve.run,
            "health": curve.health,
            "nodes": curve.nodes,
            "gpus_per_node": curve.gpus_per_node,
            "gpu": curve.gpu,
            "network": curve.machine.network.value,
            "collective": curve.collective,
            "of_class": _of_class(curve),
            "by": by,
            "said": said,
            "half": half,
        }


def held_out() -> Iterator[dict[str, Any]]:
    """Healthy curves that the calibration was not fitted to, by what was held out."""
    widths = calibrate.known_widths()
    failed: dict[str, list[bool]] = {}
    for split in splits.splits():
        if split.kind == "combination":
            continue
        own = list(_failed(split, widths))
        print(f"  {split.kind:14} {split.title[:90]:90} {sum(own)} of {len(own)} curves fail", flush=True)
        failed.setdefault(split.kind, []).extend(own)
    for kind, each in failed.items():
        print(f"{kind}: {sum(each)} of {len(each)} healthy curves fail")
        yield {"kind": kind, "curves": len(each), "failed": sum(each)}
    every = [one for each in failed.values() for one in each]
    print(f"all: {np.mean(every):.1%} of {len(every)} healthy curves fail")


def _failed(split: Split, widths: Widths) -> Iterator[bool]:
    to_fit, to_predict = splits.halves(split)
    fit, test = measured.load(split.fit[0]), measured.load((split.test or split.fit)[0])
    made = calibrate.of_tables("held out", [replace(fit, blocks=to_fit.rows)], Site(fit.header.machine), widths)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "held-out.json"
        path.write_text(calibrations.text(made), encoding="utf-8")
        scenario = describe(test.header.machine, nccl=test.header.nccl)
        expectation = Expectation(scenario, str(path))
        for each in curves.of_table(replace(test, blocks=to_predict.rows), test.name, scenario)[0]:
            times = expectation.times(each.kind, each.bytes)
            yield not judge.judge(each, times, np.zeros(len(each.bytes))).passes


def nccl_errors() -> None:
    """What ``NCCL_ERROR`` was taken from, without nodes that NCCL finds no way through."""
    found: dict[tuple[bool, int], list[Array]] = {}
    for name in measured.names():
        try:
            calls = splits.shipped(name)
        except TunerError:
            continue
        features = calls.measured.calls
        off = np.log(calls.measured.times_us / calls.nccl_us)
        sizes = np.searchsorted(ERROR_BYTES, features.bytes, side="right")
        for several, size in product((False, True), range(len(ERROR_BYTES) + 1)):
            which = ((features.nodes > 1) == several) & (sizes == size) & (features.intra_gbs > 1)
            if which.any():
                found.setdefault((several, size), []).append(off[which])
    for (several, size), each in sorted(found.items()):
        weights = np.concatenate([np.full(len(one), 1 / len(one)) for one in each])
        off = np.concatenate(each)
        order = np.argsort(off)
        reached = np.cumsum(weights[order]) / weights.sum()
        low, high = (float(off[order][np.searchsorted(reached, level)]) for level in (0.05, 0.95))
        where = f"{'several nodes' if several else 'one node'}, sizes {('below', 'from', 'from')[size]}"
        limit = human_bytes(ERROR_BYTES[max(size - 1, 0)])
        print(f"measured over NCCL's time, natural logarithm, {where} {limit}: {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    nccl_errors()
    parts = {
        "unseen": unseen,
        "public": shipped_runs,
        "splits": held_out,
        "planted": planted_faults,
    }
    kept = {name: list(part()) for name, part in parts.items()}
    for place in sys.argv[1:]:
        Path(place).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
