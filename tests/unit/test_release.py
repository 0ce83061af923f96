"""Every release's file: complete, sourced, and made of rules that exist; and what is refused."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tuner import release
from tuner.answers.explain import explain
from tuner.base.errors import BadInput, BadReleaseFile, UnknownRelease
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.registry import FromBinary, NotNccl, Registry, Source, found_in, source_of, sources_of
from tuner.emulator import nccl_source
from tuner.emulator.build import with_release
from tuner.emulator.request import Request
from tuner.emulator.rules import bandwidth, resolved
from tuner.emulator.rules.bandwidth import measured_efficiency
from tuner.emulator.rules.resolved import Rules
from tuner.emulator.rules.schedule.scheduler import Cells
from tuner.emulator.selection import Selection
from tuner.release import reader
from tuner.release.environment import Environment, allowed, parse_assignments
from tuner.release.schema import Release, RuleNames
from tuner.scenario import Scenario

FOLDER = Path(release.load("2.28.9").files[0].path).parent
REGISTRIES = resolved.registries()


def named(name: str, kind: str) -> set[str]:
    """The rules of a kind that a release names."""
    names = getattr(release.load(name).rules, kind)
    if isinstance(names, str):
        return {names}
    if isinstance(names, tuple):
        return set(names)
    return set() if names is None else {rule for rules in names.values() for rule in rules}


@pytest.mark.parametrize("name", release.names())
def test_every_rule_a_release_names_exists(name: str) -> None:
    rules = resolved.rules_for(release.load(name))
    for kind, registry in REGISTRIES.items():
        assert named(name, kind) <= set(registry), kind
        assert bool(getattr(rules, kind)) == bool(getattr(release.load(name).rules, kind)), kind
    assert set(REGISTRIES) == {field.name for field in dataclasses.fields(RuleNames)} - {"exists"}


@pytest.mark.parametrize("name", release.names())
def test_every_algorithm_that_exists_has_a_model(name: str) -> None:
    rules = release.load(name).rules
    for algorithms in rules.exists.values():
        for algorithm in algorithms:
            assert rules.bandwidth[algorithm], algorithm
            assert rules.latency[algorithm], algorithm


def test_every_rule_is_used_by_some_release() -> None:
    for kind, registry in REGISTRIES.items():
        alike = [other for other, rules in REGISTRIES.items() if rules is registry]
        used = {rule for name in release.names() for other in alike for rule in named(name, other)}
        assert set(registry) - {measured_efficiency.__name__} == used, kind


@pytest.mark.parametrize("name", release.names())
def test_every_key_of_every_file_names_its_source(name: str) -> None:
    assert list(reader.missing((FOLDER / f"{name}.toml").read_text())) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("[limits]\nwarp_size = 32\n", ["limits.warp_size"]),
        ("[limits]  # WARP_SIZE\nwarp_size = 32\n", ["limits.warp_size"]),
        ("[limits]\nwarp_size = 32  # src/tuning\n", ["limits.warp_size"]),
        ("[limits]\nwarp_size = 32  # mysrc/include/device.h\n", ["limits.warp_size"]),
        ("[limits]\nwarp_size = 32  # src/include/device.h\nmax_threads = 640\n", ["limits.max_threads"]),
        ("[a]  # src/init.cc\nb = 1\n[c]\nd = 1\n", ["c.d"]),
        ('[a]\nb = "# src/init.cc"\n', ["a.b"]),
        ("[a]\nb = [\n    1,  # src/init.cc\n]\n", ["a.b"]),
        ("# src/init.cc\n\n[a]\nb = 1\n", ["a.b"]),
        ("# of src/init.cc\n# and so on\n[a]\nb = 1\n", []),
        ("# src/init.cc\nx = 1  # src/init.cc\n[a]\nb = 1\n", ["a.b"]),
        ("[a]  # src/init.cc\n[a.b]\nc = 1\n", []),
        ("[a]  # from the binary\nb = 1\n", []),
        ('[a]\nb = [  # src/tuning/{ring,tree}.cc\n    "c",\n]\n', []),
    ],
)
def test_what_counts_as_a_source(text: str, missing: list[str]) -> None:
    assert list(reader.missing(text)) == missing


def child(folder: Path, text: str) -> Path:
    """A folder of all releases and 2.99.0, a child of 2.28.9 that says ``text``."""
    for file in FOLDER.iterdir():
        (folder / file.name).write_text(file.read_text())
    (folder / "2.99.0.toml").write_text(f'release = "2.99.0"\nparent = "2.28.9"\n{text}\n')
    return folder


S = "# src/init.cc"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"[limits] {S}\nwarp_sizes = 32", "limits.warp_sizes: unknown key; valid: algorithms, data_types, "),
        (f"[limitz] {S}\nwarp_size = 32", "limitz: unknown key; valid: "),
        (f"[efficiency.ring] {S}\nll = 0.5", "efficiency: unknown key; valid: library, "),
        (f"[cap_gbs.ll] {S}\nampére = [1, 2, 3]", "not TOML: "),
        (f"[cap_gbs.lll] {S}\nampere = [1, 2, 3]", "cap_gbs.lll: unknown key; valid: ll, ring_ll128_per_channel, "),
        (f"[base_latency_us] {S}\ntrees = {{ ll = 1 }}", "base_latency_us.trees: unknown key; valid: tree, ring, "),
        (f"[base_latency_ns.tree] {S}\nll = 6800", "base_latency_ns: wrong unit; valid: base_latency_us"),
        (f"[nvls_channels] {S}\nfast_net_mbps = 48.0", "nvls_channels.fast_net_mbps: wrong unit; valid: fast_net_gbs"),
        (f'[limits] {S}\nwarp_size = "32"', "limits.warp_size: '32'; valid: a whole number of 0 or more"),
        (f"[limits] {S}\nwarp_size = 32.0", "limits.warp_size: 32.0; valid: a whole number of 0 or more"),
        (f"[limits] {S}\nwarp_size = true", "limits.warp_size: True; valid: a whole number of 0 or more"),
        (f"[limits] {S}\nwarp_size = -1", "limits.warp_size: -1; valid: a whole number of 0 or more"),
        (f"[base_latency_us.tree] {S}\nll = nan", "base_latency_us.tree.ll: nan; valid: a number of 0 or more"),
        (f"[plugin] {S}\nkeeps_constants = 1", "plugin.keeps_constants: 1; valid: true, false"),
        (f"[rules] {S}\nlaunch = 1", "rules.launch: 1; valid: a text"),
        (f'[rules] {S}\ntime = "ring_plateau"', "rules.time: 'ring_plateau'; valid: a list"),
        (f"limits = 3 {S}", "limits: 3; valid: a table"),
        (f"[cap_gbs.ll] {S}\nampere = [87.7, 22.5]", "cap_gbs.ll.ampere: 2 values; valid: 3"),
        (f"[cap_gbs.ll] {S}\nampere = [87.7, 22.5, '19']", "cap_gbs.ll.ampere[2]: '19'; valid: a number of 0 or more"),
        (f"[tree_correction] {S}\nll = [1.0, 0.9]", "tree_correction.ll: 2 values; valid: 23"),
        (f'[paths] {S}\ngpu_direct = "PIG"', "paths.gpu_direct: 'PIG'; valid: LOC, NVL, "),
        ("[limits]\nwarp_size = 32", "limits.warp_size: no source; valid: a # on its line or its table's with src/"),
        ("parent = 3", "not TOML: "),
    ],
)
def test_what_is_refused_in_a_file(text: str, complaint: str, tmp_path: Path) -> None:
    folder = child(tmp_path, text)
    with pytest.raises(BadReleaseFile, match="^" + re.escape(f"{folder}/2.99.0.toml: {complaint}")) as error:
        release.read(folder, "2.99.0")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["plugin", "ll128", "nvls_tree_correction_on_arm"])
def test_what_a_release_may_lack(key: str, tmp_path: Path) -> None:
    assert getattr(release.read(child(tmp_path, f'without = ["{key}"]'), "2.99.0"), key) is None


@pytest.mark.parametrize("key", ["limits", "rules", "cap_gbs", "symmetric", "environment"])
def test_what_a_release_cannot_lack(key: str, tmp_path: Path) -> None:
    folder = child(tmp_path, f'without = ["{key}"]')
    with pytest.raises(BadReleaseFile, match=re.escape(f"{folder}/2.99.0.toml: {key}: missing from the file")):
        release.read(folder, "2.99.0")


def test_a_missing_row_and_the_file_that_a_mistake_stands_in(tmp_path: Path) -> None:
    folder = child(tmp_path, f'without = ["registered_nvls_channels"]\n[registered_nvls_channels] {S}\nhopper = {{}}')
    with pytest.raises(
        BadReleaseFile, match=re.escape("2.99.0.toml: registered_nvls_channels.fast_reduce_scatter_gbs: missing from")
    ):
        release.read(folder, "2.99.0")
    parent = folder / "2.28.9.toml"
    parent.write_text(parent.read_text().replace("warp_size = 32 ", "warp_size = 3.5"))
    (folder / "2.99.0.toml").write_text('release = "2.99.0"\nparent = "2.28.9"\n')
    with pytest.raises(BadReleaseFile, match=re.escape(f"{parent}: limits.warp_size: 3.5")):
        release.read(folder, "2.99.0")


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        ('release = "2.98.0"', "release: '2.98.0'; valid: '2.99.0'"),
        ('release = "2.99.0"\nparent = "2.1.0"', "parent: '2.1.0'; valid: a release with a file"),
        ('release = "2.99.0"\nparent = "2.99.0"', "parent: '2.99.0'; valid: a release with a file that is not its own"),
    ],
)
def test_a_file_that_says_another_release_or_no_parent(head: str, complaint: str, tmp_path: Path) -> None:
    folder = child(tmp_path, "")
    (folder / "2.99.0.toml").write_text(head)
    with pytest.raises(BadReleaseFile, match=re.escape(f"2.99.0.toml: {complaint}")):
        release.read(folder, "2.99.0")


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ('[rules]\nlaunch = "shrink"', "rules.launch: unknown rule 'shrink'; valid: shrink_then_cells, "),
        ('[rules]\ntime = ["tree"]', "rules.time: unknown rule 'tree'; valid: tree_correction, "),
        ('[rules.bandwidth]\nring = ["graf"]', "rules.bandwidth.ring: unknown rule 'graf'; valid: graph, "),
    ],
)
def test_a_rule_that_does_not_exist(rules: str, complaint: str, tmp_path: Path) -> None:
    head, _, keys = rules.partition("\n")
    folder = child(tmp_path, f"{head} {S}\n{keys}")
    with pytest.raises(BadReleaseFile, match="^" + re.escape(f"{folder}/2.99.0.toml: {complaint}")):
        resolved.rules_for(release.read(folder, "2.99.0"))


def test_a_constant_that_a_rule_goes_by_and_that_is_missing(tmp_path: Path) -> None:
    folder = child(tmp_path, f'[rules] {S}\nlaunch = "shrink_then_bytes"')
    scenario = Scenario("2.28.9", 1, machine="dgx-h100").communicator()
    selection = Selection(with_release(scenario, release.read(folder, "2.99.0")))
    with pytest.raises(BadReleaseFile, match=r"limits\.part_alignment_bytes: missing from the release's file"):
        selection.pick(Request(Collective.AllReduce, DataType.float32, Op.sum), 1 << 20)


def test_a_child_changes_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    text = f"[limits] {S}\nmax_channels = 65\n[base_latency_us] {S}\nring = {{ ll = 1 }}"
    parent, changed = release.load("2.28.9"), release.read(child(tmp_path, text), "2.99.0")
    assert changed.limits == dataclasses.replace(parent.limits, max_channels=65)
    assert changed.base_latency_us[Algorithm.Ring] == {**parent.base_latency_us[Algorithm.Ring], Protocol.LL: 1.0}
    assert changed.base_latency_us[Algorithm.Tree] == parent.base_latency_us[Algorithm.Tree]
    keys = [(each.key, each.before, each.after) for each in release.differences(parent, changed)]
    assert keys == [("base_latency_us.ring.ll", 6.6, 1), ("limits.max_channels", 64, 65)]


def test_a_change_is_checked_as_a_file_is() -> None:
    nccl = release.load("2.28.9")
    assert release.changed(nccl, {"limits": {"warp_size": 64}}).limits.warp_size == 64
    with pytest.raises(BadReleaseFile, match=r"a change of NCCL 2.28.9: limits.warp: unknown key"):
        release.changed(nccl, {"limits": {"warp": 64}})
    with pytest.raises(BadReleaseFile, match=r"a change of NCCL 2.28.9: name: unknown key"):
        release.changed(nccl, {"name": "2.29.0"})


def test_collectives_and_algorithms_are_all_there() -> None:
    for name in release.names():
        nccl: Release = release.load(name)
        assert set(nccl.rules.exists) == set(Collective)
        assert set(nccl.base_latency_us) == set(Algorithm)


def test_no_release_number_in_the_code_of_model_and_selection() -> None:
    emulator = Path(release.__file__).parents[1] / "emulator"
    for module in set(emulator.rglob("*.py")) - set((emulator / "steps").glob("*.py")):
        code = re.sub(r'(?s:""".*?""")|#.*|since="[\d.]+"', "", module.read_text())  # a source says since when
        assert not re.search(r"\b2\.\d\d", code), module.name


def test_an_unknown_release_lists_the_known() -> None:
    for again in ("2.26.2.post1", "2.26.2+cuda12.8", "v2.26.2-1"):
        assert release.named(again) == "2.26.2"
    newest = ", ".join(release.names()[-5:])
    with pytest.raises(UnknownRelease, match=rf"no table for NCCL 2\.99\.1; valid: {newest} and \d+ more"):
        release.load("2.99.1")
    with pytest.raises(UnknownRelease, match=r"2\.17\.4.*; valid: 2\.18\.1, 2\.18\.3, .* and \d+ more"):
        release.load("2.17.4")


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


def names(text: str) -> dict[str, set[str]]:
    rows = allowed(text, "NCCL_ALGO", Algorithm)
    return {collective.name: {a.name for a, on in row.items() if on} for collective, row in rows.items()}


def test_a_list_without_a_collective_holds_for_all() -> None:
    assert names("ring,TREE") == {collective.name: {"Ring", "Tree"} for collective in Collective}


def test_a_later_entry_overwrites_its_collective_whole() -> None:
    found = names("ring;allreduce:tree")
    assert found["AllReduce"] == {"Tree"}
    assert found["Broadcast"] == {"Ring"}


def test_a_first_entry_with_a_collective_leaves_the_others_alone() -> None:
    assert names("allgather:nvls") == {"AllGather": {"NVLS"}}


def test_caret_inverts() -> None:
    rows = allowed("^LL128;allreduce:LL128", "NCCL_PROTO", Protocol)
    assert rows[Collective.Reduce] == {Protocol.LL: True, Protocol.LL128: False, Protocol.Simple: True}
    assert rows[Collective.AllReduce] == {Protocol.LL: False, Protocol.LL128: True, Protocol.Simple: False}


def test_an_empty_value_changes_nothing() -> None:
    assert names("") == {}


REFUSED = ["rings", "ring;tree", "ring;foo:tree", "foo:tree", ";ring", " ring", "ring, tree", ":"]


@pytest.mark.parametrize("text", REFUSED)
def test_what_nccl_refuses_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="NCCL_ALGO"):
        allowed(text, "NCCL_ALGO", Algorithm)


def test_numbers_are_read_as_strtoll_reads_them() -> None:
    environment = Environment({"NCCL_A": "0x10", "NCCL_B": "", "NCCL_C": "99999999999999999999", "NCCL_D": "3x"})
    assert [environment.number(f"NCCL_{name}", -2) for name in "ABCDE"] == [16, -2, -2, 3, -2]


@pytest.mark.parametrize("assignment", ["NCCL_ALGO", "=x", "A B=x"])
def test_assignments_must_be_nccl_variables(assignment: str) -> None:
    with pytest.raises(BadInput, match="NCCL_NAME=VALUE"):
        parse_assignments((assignment,))
