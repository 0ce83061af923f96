"""Every rule says where NCCL has it: a source for each release that uses the rule, and none that no release uses."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import pytest

from tuner import release
from tuner.answers.explain import explain
from tuner.base.names import Collective, DataType, Op
from tuner.base.registry import FromBinary, NotNccl, Registry, Source, found_in, source_of, sources_of
from tuner.emulator import nccl_source
from tuner.emulator.request import Request
from tuner.emulator.rules import bandwidth, resolved
from tuner.emulator.rules.resolved import Rules
from tuner.emulator.rules.schedule.scheduler import Cells
from tuner.scenario import Scenario

Rule = Callable[..., Any]
RELEASES = release.names()
ALL_RULES: set[Rule] = {rule for registry in resolved.registries().values() for rule in registry.values()}
TUNING_MOVED_IN = "2.31.2"


def idle_kinds(nccl: str, rules: Rules) -> set[str]:
    """Kinds that the release's file names a rule of, as its parent does, while no other rule of it asks for one."""
    kinds = set()
    if rules.non_classic_path.__name__ == "classic_path_only":
        kinds |= {"symmetric_time", "symmetric_blocks", "symmetric_requested"}
    if not isinstance(rules.schedule, Cells):
        kinds |= {"channel_split", "traffic_per_channel", "task_order", "counted_traffic"}
    if all(bandwidth.plain_tree not in steps for steps in rules.bandwidth.values()):
        kinds.add("tree_pattern")
    if release.load(nccl).limits.data_types <= DataType.float8e4m3:
        kinds.add("fp8_needs_hopper")
    return kinds


def used_by(nccl: str) -> Iterator[Rule]:
    rules = resolved.rules_for(release.load(nccl))
    algorithms = {algorithm for row in rules.exists.values() for algorithm in row}
    for kind in {field.name for field in fields(rules)} - {"exists"} - idle_kinds(nccl, rules):
        named = getattr(rules, kind)
        if isinstance(named, Mapping):
            for algorithm in algorithms:
                yield from named[algorithm]
        elif isinstance(named, tuple):
            yield from named
        elif named is not None:
            yield named


USERS: dict[Rule, list[str]] = {}
for _nccl in RELEASES:
    for _rule in set(used_by(_nccl)):
        USERS.setdefault(_rule, []).append(_nccl)


def name(rule: Rule) -> str:
    return f"{rule.__module__}.{rule.__name__}"


ORDERED: list[Rule] = sorted(ALL_RULES, key=name)


@pytest.mark.parametrize("rule", ORDERED, ids=name)
def test_a_rule_has_a_source_for_every_release_that_uses_it(rule: Rule) -> None:
    if isinstance(sources_of(rule)[0], NotNccl):
        assert rule not in USERS
        return
    users = USERS[rule]
    assert sources_of(rule)[0].since == users[0]
    assert {source.since for source in sources_of(rule)} <= set(users)
    for nccl in users:
        source = source_of(rule, nccl)
        assert source.function
        if not isinstance(source, FromBinary):
            assert source.text(nccl) == f"{source.function}, {source.file}, v{nccl}-1"


def test_no_rule_stands_where_its_release_has_no_such_file() -> None:
    """The model's files of 2.31 are not those before, nor are its braces: as many files as functions."""
    for rule in ALL_RULES:
        for source in sources_of(rule):
            moved = source.file.startswith(("src/tuning/", "src/enqueue/"))
            later = RELEASES.index(source.since) >= RELEASES.index(TUNING_MOVED_IN)
            assert moved <= later, rule.__name__
            if not isinstance(source, NotNccl):
                assert source.file.count(",") == source.function.count(","), rule.__name__
        for nccl in USERS.get(rule, [])[-1:]:
            if RELEASES.index(nccl) >= RELEASES.index(TUNING_MOVED_IN):
                assert source_of(rule, nccl).file not in ("src/graph/tuning.cc", "src/enqueue.cc"), rule.__name__


def test_every_place_in_nccl_is_one_of_a_rule() -> None:
    places = {value.args for value in vars(nccl_source).values() if getattr(value, "func", None) is Source}
    named = {(source.file, source.function) for rule in [*ALL_RULES, *steps()] for source in sources_of(rule)}
    assert places <= named


def steps() -> list[Rule]:
    """What all releases do, of which explanations have steps, too."""
    from tuner.emulator.rules import bounds, time

    return [time.size_over_bandwidth, time.plus_latency, bounds.plain_bound, bounds.fewer_threads]


def test_a_rule_without_a_source_is_an_error() -> None:
    rules: Registry[Callable[[], None]] = Registry()

    def rule() -> None: ...

    with pytest.raises(TypeError, match="needs a source"):
        rules()(rule)
    with pytest.raises(TypeError, match="needs a source"):
        rules(rule)  # type: ignore[arg-type]  # the decorator without parentheses
    with pytest.raises(TypeError, match="needs a source"):
        rules.variant()(type(rule))
    assert not rules
    with pytest.raises(LookupError, match="rule has no source"):
        sources_of(rule)


def test_sources_come_in_the_order_of_releases() -> None:
    early, late = Source("a.cc", "one", since="2.9.1"), Source("b.cc", "two", since="2.10.0")
    with pytest.raises(ValueError, match="out of order"):
        found_in(late, early)

    @found_in(early, late)
    def rule() -> None: ...

    texts = [source_of(rule, nccl).text(nccl) for nccl in ("2.9.1", "2.9.9", "2.10.0", "2.32.3")]
    assert texts == ["one, a.cc, v2.9.1-1", "one, a.cc, v2.9.9-1", "two, b.cc, v2.10.0-1", "two, b.cc, v2.32.3-1"]
    with pytest.raises(LookupError, match=r"no source in NCCL 2\.8\.0"):
        source_of(rule, "2.8.0")


def explained(nccl: str, size: int) -> dict[str, str]:
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    found = explain(Scenario(nccl=nccl, machine="dgx-a100", nodes=2), request, size)
    return {step.name: step.source for step in found.steps}


@pytest.mark.parametrize(
    ("nccl", "rule", "source"),
    [
        ("2.18.1", "tree_correction_from_0_bytes", "ncclTopoGetAlgoTime, src/graph/tuning.cc, v2.18.1-1"),
        ("2.28.9", "tree_correction", "ncclTopoGetAlgoTime, src/graph/tuning.cc, v2.28.9-1"),
        ("2.31.2", "tree_correction", "ncclTuningTreeModelSim, src/tuning/tree.cc, v2.31.2-1"),
        ("2.32.3", "ring_plateau_graded", "ncclTuningRingModelSim, src/tuning/ring.cc, v2.32.3-1"),
        ("2.18.1", "fewer_threads", "getAlgoInfo, src/enqueue.cc, v2.18.1-1"),
        ("2.21.5", "fewer_threads", "getChannnelThreadInfo, src/enqueue.cc, v2.21.5-1"),
        ("2.32.3", "fewer_threads", "ncclTuningGetChannels, src/tuning/tuning_general.cc, v2.32.3-1"),
    ],
)
def test_an_explanation_names_the_source_of_its_release(nccl: str, rule: str, source: str) -> None:
    assert explained(nccl, 1 << 20)[rule] == source


@pytest.mark.parametrize("nccl", RELEASES)
def test_every_step_is_of_the_release_or_says_that_it_was_read_from_the_binary(nccl: str) -> None:
    for source in explained(nccl, 1 << 28).values():
        assert source.endswith((f", v{nccl}-1", f"read from the binary, libnccl.so.2 {nccl}"))


def test_texts_of_what_no_source_has() -> None:
    binary = nccl_source.BINARY("ncclTuningGetChannels", since="2.32.3")
    assert binary.text("2.32.3") == "ncclTuningGetChannels, read from the binary, libnccl.so.2 2.32.3"
    assert nccl_source.NOT_NCCL.text("2.28.9") == "fitted constants, no rule of NCCL's"
