"""A simulated machine, measured and decided on, beside what only a test may know: the planted truth."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

from tuner.base.names import AlgoProto, Collective
from tuner.bench.decision.gate import GateSettings, RowVerdict, gate
from tuner.bench.decision.rows import DecisionRow, Proposal
from tuner.bench.loop import Loop, Settings, Wanted, points, tasks
from tuner.bench.simulated import Simulated
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario
from tuner.times.measured.samples import Measurements, Point, SampleBlock
from tuner.times.verify import EmulatedModel, JudgedFile

COLLECTIVES = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
NOTHING: Mapping[str, Any] = {}  # planted


def scenario(nodes: int = 2, gpus: int | None = None) -> Scenario:
    return Scenario(nccl="2.28.9", machine="dgx-h100", nodes=nodes, gpus_per_node=gpus)


@cache
def model(machine: Scenario) -> EmulatedModel:
    return EmulatedModel(Selection(machine.communicator()))


@dataclass(frozen=True, eq=False)
class Measured:
    backend: Simulated
    proposal: Proposal

    @property
    def comparison(self) -> JudgedFile:
        return self.proposal.comparison

    def true_us(self, point: Point) -> dict[AlgoProto, float]:
        """Of what really can run: replaced combinations cannot, NCCL's pick always can."""
        planted, pick = self.backend, self.pick(point)
        return {
            algo_proto: cost.time_us(0)
            for algo_proto, cost in planted.truth.costs(point).items()
            if algo_proto == pick or not any(each.holds(point, algo_proto) for each in planted.replaced)
        }

    def pick(self, point: Point) -> AlgoProto:
        found = model(self.backend.scenario).pick(point)
        assert found is not None
        return found.algo_proto

    def true_regret(self, rows: list[DecisionRow], point: Point) -> float:
        """Of what runs under a table of ``rows``."""
        times = self.true_us(point)
        row = next((row for row in rows if row.collective is point.collective and row.holds(point.bytes)), None)
        executed = row.choice.algo_proto if row else self.pick(point)
        return times.get(executed, times[self.pick(point)]) / min(times.values()) - 1

    def gated(self, seed: int, proposal: Proposal | None = None) -> list[RowVerdict]:
        truth = None if self.backend.describe().truth == "of the seed" else NOTHING
        own = self.proposal
        again = Simulated(
            self.backend.scenario, self.backend.seed, truth, after=len(own.comparison.measurements.blocks)
        )
        with closing(again) as backend:
            return gate(backend, proposal or own, GateSettings(seed=seed), lambda block: None)


def measured(
    seed: int, truth: Mapping[str, Any] | None = None, nodes: int = 2, rounds: int = 8, gpus: int | None = None
) -> Measured:
    """One run, which a process measures once: no test changes what it is given."""
    assert truth is None or truth is NOTHING
    return _measured(seed, truth is NOTHING, scenario(nodes, gpus), rounds)


@cache
def _measured(seed: int, nothing: bool, machine: Scenario, rounds: int) -> Measured:
    backend = Simulated(machine, seed, NOTHING if nothing else None)
    blocks: list[SampleBlock] = []
    wanted = tasks(backend, points(COLLECTIVES, None, backend.ranks), Wanted())
    for _ in Loop(backend, wanted, Settings(rounds=rounds, seed=seed), blocks.append).run():
        pass
    comparison = JudgedFile(Measurements(backend.describe(), tuple(blocks)), model(backend.scenario))
    return Measured(backend, Proposal(comparison, backend.ranks, machine.nodes))


def best_found(run: Measured, margin: float = 0.03) -> tuple[int, int]:
    """Sizes whose true best is ahead of all others by the margin, and at how many of them it was found."""
    found = compared = 0
    for one in run.comparison.sizes:
        times = run.true_us(one.call)
        first, second, *_ = sorted(times.values())
        if second / first > 1 + margin:
            compared += 1
            found += times[one.best.algorithm, one.best.protocol] == first
    return found, compared


def idle(run: Measured) -> Proposal:
    """Rows that ask for what NCCL picks anyway, so that nothing is to be gained by any of them."""
    rows: list[DecisionRow] = []
    for kind, sizes in run.comparison.kinds.items():
        for at in range(0, len(sizes), 4):
            choice = sizes[at].pick
            alike = [one.call.bytes for one in sizes[at : at + 4] if one.pick == choice]
            rows.append(DecisionRow(kind.collective, alike[0], alike[-1], choice, tuple(alike)))
    own = run.proposal
    found = Proposal(own.comparison, own.ranks, own.nodes)
    found.rows = rows
    return found
