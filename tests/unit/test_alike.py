"""Communicators that choose alike: equal values, equal answers; and rules look at nothing that is not in the values."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers, Collective, DataType
from tuner.emulator import alike, model
from tuner.emulator.communicator import Comm
from tuner.emulator.request import MessageSizes, Request, request
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.rules.launch import Piece
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

PLACES = [
    ("dgx-h100", 1),
    ("dgx-h100", 3),
    ("dgx-b200", 1),
    ("dgx-b200", 4),
    ("pcie-l40s", 2),
    ("gh200-4x", 2),
    ("dgx-1v", 1),
]
SIZES = np.array([part << shift for shift in range(8, 33) for part in (2, 3)], np.uint64)


def selections(machine: str, nodes: int) -> list[Selection]:
    return [
        Selection(Scenario(nccl, nodes, machine).communicator()) for nccl in Scenario("2.28.9", 1, machine).releases
    ]


def answer(selection: Selection, asked: Request) -> bytes:
    picks = selection.pick(asked, SIZES)
    columns: list[NDArray[Any]] = [picks.combinations, picks.channels, picks.threads, picks.time_us]
    for each in selection.candidates(asked):
        columns += [
            array for step in selection.steps_of_calls(asked, SIZES, each) for array in (step.before, step.after)
        ]
    return b"".join(each.tobytes() for each in (*columns, selection.times_us(asked, SIZES)))


@pytest.mark.parametrize(("machine", "nodes"), PLACES)
def test_equal_values_have_equal_answers(machine: str, nodes: int) -> None:
    chosen, tables = dict[object, bytes](), dict[object, bytes]()
    for selection in selections(machine, nodes):
        of_tables = alike.of_tables(selection.communicator)
        arrays = selection.tables.latency_us, selection.tables.bandwidth_gbs, selection.tables.max_threads
        content = b"".join(each.tobytes() for each in arrays) + repr(selection.tables.reasons).encode()
        assert tables.setdefault(of_tables, content) == content
        for collective in Collective:
            asked = request(collective)
            assert chosen.setdefault(alike.of_choice(selection, asked), answer(selection, asked)) == answer(
                selection, asked
            )
    assert None not in chosen | tables
    assert len(tables) < len(selections(machine, nodes))
    assert len(chosen) < len(Collective) * len(selections(machine, nodes)) * 0.8


def only(whole: Any, names: tuple[str, ...]) -> SimpleNamespace:
    """An object with these attributes alone."""
    return SimpleNamespace(**{name: getattr(whole, name) for name in names})


def with_model_constants(communicator: Comm) -> Comm:
    nccl, rows = communicator.release, (communicator.generation, *alike.CAPPED_AS)
    left = only(nccl, alike.MODEL_CONSTANTS)
    left.generation = nccl.generation
    left.cap_gbs = {name: {row: of[row] for row in rows if row in of} for name, of in nccl.cap_gbs.items()}
    made = only(communicator, (*alike.FACTS, "graphs", "environment", "generation", "nvls_heads", "nvls"))
    made.release, made.rules = left, only(communicator.rules, alike.MODEL_RULES)
    return cast(Comm, made)


@pytest.mark.parametrize(("machine", "nodes"), PLACES)
def test_tables_depend_on_nothing_else(machine: str, nodes: int) -> None:
    for selection in selections(machine, nodes):
        made = with_model_constants(selection.communicator)
        tables = model.empty(made)
        for collective in Collective:
            model.fill(tables, made, collective)
        assert (tables.latency_us == selection.tables.latency_us).all()
        assert (tables.bandwidth_gbs == selection.tables.bandwidth_gbs).all()
        assert tables.reasons == selection.tables.reasons


FACTS_OF_CALLS = ("ranks", "nodes", "min_local_ranks", "max_local_ranks", "channels", "coll_channels", "nvls_channels")
FACTS_OF_TIMES = tuple(name for name in FACTS_OF_CALLS if name != "nvls_channels")
ASKED_FOR_AN_ANSWER = ("nvls_kind", "nvls_bound", "bound_channels")


def with_time_constants(communicator: Comm) -> Comm:
    nccl = communicator.release
    left = only(nccl, alike.CORRECTED_BY)
    left.limits = only(nccl.limits, ("max_time_us", "colls_per_batch", *alike.CORRECTING_LIMITS))
    made = only(communicator, (*FACTS_OF_TIMES, "min_comp_cap", "cpu_arch", "net_gbs", "generation"))
    made.release, made.rules = left, only(communicator.rules, ("time", "penalty", "pick"))
    made.graphs = {Algorithm.Ring: only(communicator.graphs[Algorithm.Ring], ("type_intra",))}
    return cast(Comm, made)


def with_call_constants(communicator: Comm) -> Comm:
    made = only(communicator, (*FACTS_OF_CALLS, "collnet", "ctas", "environment"))
    made.release = SimpleNamespace(limits=only(communicator.release.limits, alike.LIMITS))
    made.rules = only(communicator.rules, (*alike.CALL_RULES, *ASKED_FOR_AN_ANSWER))
    return cast(Comm, made)


def with_launch_constants(whole: RuleCall) -> Comm:
    """What is left of a communicator, with the answers of the rules that were asked for one."""
    communicator, cell = whole.communicator, whole.algo_proto
    bound, like_nvls = communicator.rules.bound_channels(communicator), whole.like_nvls
    of_nvls = communicator.rules.nvls_bound(communicator, cell) if like_nvls else None
    names = ["environment", "nvls_channels" if like_nvls else "channels"]
    if communicator.rules.launch.looks_at(communicator) is not None:
        names.append("ctas")
    if whole.algorithm is Algorithm.CollNetDirect:
        names.append("collnet")
    made = only(communicator, tuple(names))
    made.ranks = communicator.ranks if whole.request.spreads else 7919
    made.nodes = 2 if whole.like_collnet else 1
    made.release = SimpleNamespace(limits=only(communicator.release.limits, alike.LIMITS))
    made.rules = only(communicator.rules, alike.CALL_RULES)
    made.rules.bound_channels, made.rules.nvls_kind = lambda _: bound, lambda *_: like_nvls
    made.rules.nvls_bound = lambda *_: of_nvls
    return cast(Comm, made)


@pytest.mark.parametrize(("machine", "nodes"), PLACES)
def test_times_and_launches_depend_on_nothing_else(machine: str, nodes: int) -> None:
    for selection in selections(machine, nodes):
        communicator = selection.communicator
        timed, called = with_time_constants(communicator), with_call_constants(communicator)
        for asked in map(request, Collective):
            times_us = []
            for algo_proto in selection.candidates(asked):
                whole = RuleCall(communicator, asked, algo_proto)
                latency_us, bandwidth_gbs = selection.model_of(whole)
                call = RuleCall(timed, asked, algo_proto)
                times_us.append(timing.time_us(latency_us, bandwidth_gbs, call, MessageSizes(SIZES)))
                made = with_launch_constants(whole)
                launched = made.rules.launch(RuleCall(made, asked, algo_proto), selection.tables, SIZES)
                for own, each in zip(launched, selection.launched(asked, SIZES, algo_proto), strict=True):
                    assert (own == each).all()
                for piece in (Piece(bound, 512, 1 << 12, 1 << 18) for bound in (1, 7, 16)):
                    turning = called.rules.launch.turning(RuleCall(called, asked, algo_proto), piece)
                    assert (turning == communicator.rules.launch.turning(whole, piece)).all()
            assert (np.column_stack(times_us) == selection.times_us(asked, SIZES)).all()
            _, best_us = timed.rules.pick(iter(times_us), timed)
            assert (best_us == selection.pick(asked, SIZES).time_us).all()


def test_what_is_not_compared() -> None:
    variable = Scenario("2.28.9", 2, "dgx-h100", environment={"NCCL_ALGO": "Ring"})
    assert alike.of_tables(variable.communicator()) is None
    assert alike.of_choice(Selection(variable.communicator()), request(Collective.AllReduce)) is None
    plain = Selection(Scenario("2.28.9", 2, "dgx-h100").communicator())
    assert alike.of_choice(plain, request(Collective.AllReduce)) is not None
    assert alike.of_choice(plain, request(Collective.AllReduce, buffers=Buffers.registered)) is None


@pytest.mark.parametrize("constant", ["channels", "ranks", "nodes", "ctas"])
def test_each_number_counts(constant: str) -> None:
    communicator = Scenario("2.32.3", 2, "dgx-h100").communicator()
    asked, own = request(Collective.AllReduce), getattr(communicator, constant)
    change: dict[str, Any] = {constant: (1, 2) if constant == "ctas" else own + 1}
    other = replace(communicator, **change)
    assert alike.of_choice(Selection(other), asked) != alike.of_choice(Selection(communicator), asked)


def test_types_count() -> None:
    selection = Selection(Scenario("2.28.9", 4, "dgx-h100").communicator())
    by_type = {alike.of_choice(selection, request(Collective.AllReduce, dtype=dtype)) for dtype in DataType}
    assert len(by_type) == len(DataType)


@pytest.mark.parametrize(("machine", "nodes"), PLACES)
def test_picks_of_many_communicators_are_those_of_each(machine: str, nodes: int) -> None:
    alike_ones, count = alike.Alike(), 0
    shared = dict[int, object]()
    for own in selections(machine, nodes):
        selection = alike_ones.selection(own.communicator)
        for asked in map(request, Collective):
            picks = alike_ones.pick(selection, asked, SIZES)
            shared[id(picks)], count = picks, count + 1
            expected = own.pick(asked, SIZES)
            for one, other in zip(picks.stored, expected.stored, strict=True):
                assert (one == other).all()
            assert (picks.channels.dtype, picks.threads.dtype) == (expected.channels.dtype, expected.threads.dtype)
    assert len(shared) < count * 0.8


def test_what_is_kept_between_machines_is_right() -> None:
    alike_ones = alike.Alike()
    for machine in ("dgx-h100", "pcie-l40s", "dgx-h200", "dgx-1v", "dgx-h100"):
        alike_ones.forget()
        for nodes, sizes in ((2, SIZES), (4, SIZES), (2, SIZES * np.uint64(3))):
            own = Selection(Scenario("2.21.5", nodes, machine).communicator())
            for asked in map(request, Collective):
                picks = alike_ones.pick(alike_ones.selection(own.communicator), asked, sizes.copy())
                for one, other in zip(picks.stored, own.pick(asked, sizes).stored, strict=True):
                    assert (one == other).all()


def test_picks_keep_their_sizes_if_the_asked_array_changes() -> None:
    selection, sizes = Selection(Scenario("2.28.9", 2, "dgx-h100").communicator()), SIZES.copy()
    picks = alike.Alike().pick(selection, request(Collective.AllReduce), sizes)
    sizes[:] = 8
    assert (picks.bytes == SIZES).all()


@pytest.mark.parametrize("sizes", [np.array([0], np.uint64), np.array([1.5])])
def test_sizes_out_of_range_are_refused(sizes: Any) -> None:
    selection = Selection(Scenario("2.28.9", 2, "dgx-h100").communicator())
    with pytest.raises(BadInput, match=r"1 to 2\*\*62"):
        alike.Alike().pick(selection, request(Collective.AllReduce), sizes)


@pytest.mark.parametrize(("machine", "nodes"), PLACES)
def test_equal_communicators_have_equal_calls(machine: str, nodes: int) -> None:
    known = dict[tuple[object, Request], tuple[bytes, object]]()
    for selection in selections(machine, nodes):
        value = alike.of_calls(selection.communicator)
        for asked in map(request, Collective):
            steps = [
                step.rule
                for each in selection.candidates(asked)
                for step in (
                    *selection.steps_of_model(asked, 1, each),
                    *selection.steps_of_calls(asked, SIZES, each),
                )
            ]
            found = answer(selection, asked), (selection.excluded(asked), steps)
            assert known.setdefault((value, asked), found) == found
    assert None not in {of_calls for of_calls, _ in known}
    assert len(known) < len(Collective) * len(selections(machine, nodes))


@pytest.mark.parametrize("rule", ["candidate", "fp8_needs_hopper", "time", "penalty", "pick", "launch", "nvls_bound"])
def test_each_rule_of_calls_counts(rule: str) -> None:
    communicator = Scenario("2.28.9", 2, "dgx-h100").communicator()
    change: dict[str, Any] = {rule: object()}
    other = replace(communicator, rules=replace(communicator.rules, **change))
    assert alike.of_calls(other) != alike.of_calls(communicator)
    assert alike.of_calls(replace(communicator)) == alike.of_calls(communicator)


def test_each_limit_of_calls_counts() -> None:
    communicator = Scenario("2.28.9", 2, "dgx-h100").communicator()
    limits = replace(communicator.release.limits, max_direct_local_ranks=7)
    other = replace(communicator, release=replace(communicator.release, limits=limits))
    assert alike.of_calls(other) != alike.of_calls(communicator)
