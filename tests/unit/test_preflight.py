"""Records of ranks compared: kinds, differences, what they reach, and at which sizes ranks part."""

import ast
import contextlib
import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.support.command_line import run
from tests.support.preflight_records import AMD, INTEL, Host, as_json, with_processor, write, written
from tests.support.two_ports import with_two_ports
from tuner import plugin
from tuner.base.errors import TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.base.nouns import Span
from tuner.base.records import sha256
from tuner.emulator.request import Request
from tuner.jobs.preflight import collect
from tuner.jobs.preflight.differences import Reach
from tuner.jobs.preflight.settings import DescribedNodes
from tuner.jobs.preflight.workflow import PreflightQuery, RanksVerdict, Report, check, letters
from tuner.machine import catalogue
from tuner.plugin.table.values import close

ALLREDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
SCRIPT = Path(collect.__file__)


def checked(folder: Path, *hosts: Host, nodes: DescribedNodes | None = None) -> Report:
    return check(write(folder, *hosts), PreflightQuery((ALLREDUCE,), Span(high=1 << 34), nodes or DescribedNodes()))


def reaches(report: Report) -> dict[str, Reach]:
    return {each.what: each.reach for each in report.differences}


def codes(report: Report) -> list[str]:
    return [each.code for each in report.findings]


def test_ranks_that_are_alike_choose_the_same(tmp_path: Path) -> None:
    report = checked(tmp_path, Host("a"), Host("b"))
    assert (report.verdict, report.records, report.expected) == (RanksVerdict.same, 16, 16)
    assert [(kind.ranks, kind.hosts) for kind in report.kinds] == [(16, ("a", "b"))]
    assert report.differences == report.differing_picks == ()


@pytest.mark.parametrize(("nccl", "part"), [("2.18.1", True), ("2.23.4", True), ("2.24.3", False), ("2.28.9", False)])
@pytest.mark.parametrize("first", [INTEL, AMD], ids=["Intel first", "AMD first"])
def test_processors_of_two_vendors(first: dict[str, Any], nccl: str, part: bool, tmp_path: Path) -> None:
    """Nccl #1136: hangs at some sizes with 2.18 and 2.19, as ranks tune for their own processor, as in 2.23 still."""
    other = AMD if first is INTEL else INTEL
    a, b = (with_processor(Host(name, nccl=nccl), cpu) for name, cpu in (("a", first), ("b", other)))
    report = checked(tmp_path, a, b)
    assert (report.verdict is RanksVerdict.differing) == part
    assert bool(report.differing_picks) == part
    assert (reaches(report)["processor"] is Reach.parts) == part


def powers_of_two(report: Report) -> set[int]:
    """Those among the sizes at which ranks part."""
    powers = [1 << shift for shift in range(2, 35)]
    return {power for power in powers for each in report.differing_picks if each.from_bytes <= power <= each.to_bytes}


@pytest.mark.parametrize("nccl", ["2.18.1", "2.19.3"])
def test_the_workaround_of_a_cluster_with_processors_of_two_vendors(nccl: str, tmp_path: Path) -> None:
    """Nccl #1136: allreduce, allgather and reduce-scatter of nccl-tests, which takes powers of two, hang at some sizes.

    Hosts have four adapters of 100 Gb/s; NCCL_NET_OVERHEAD=1000 leaves nothing that ranks part by.
    """
    adapters = [{**adapter, "gbps": 100.0} for adapter in Host("a", "dgx-a100").record(0)["adapters"][:4]]
    of_host = Host("", "dgx-a100", nccl, more={"adapters": adapters})
    hosts = [with_processor(replace(of_host, name=name), AMD if name in "bd" else INTEL) for name in "abcd"]
    kinds = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
    question = PreflightQuery(tuple(Request(kind, DataType.float32, Op.sum) for kind in kinds), Span(high=1 << 34))
    report = check(write(tmp_path / "as it was", *hosts), question)
    assert {each.collective for each in report.differing_picks} == set(kinds)
    assert {262144, 524288} <= powers_of_two(report)
    around = [host.with_env(NCCL_NET_OVERHEAD="1000") for host in hosts]
    report = check(write(tmp_path / "workaround", *around), question)
    assert (report.verdict, report.differing_picks) == (RanksVerdict.same, ())


def test_one_rank_with_another_algorithm(tmp_path: Path) -> None:
    report = checked(tmp_path, Host("a"), Host("b", env_of_rank={3: {"NCCL_ALGO": "Ring"}}))
    assert report.verdict is RanksVerdict.differing
    assert [kind.ranks for kind in report.kinds] == [15, 1]
    assert reaches(report) == {"NCCL_ALGO": Reach.parts}
    for differing in report.differing_picks:
        others, own = differing.picks
        assert own is not None
        assert others is not None
        assert own.algorithm.name == "Ring"
        assert (own.algorithm, own.protocol, own.channels) != (others.algorithm, others.protocol, others.channels)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("overhead", [{}, {"NCCL_NET_OVERHEAD": "2000"}], ids=["default", "overhead"])
def test_two_generations_of_gpus(overhead: dict[str, str], ranks: int, tmp_path: Path) -> None:
    """Nccl #1184: the A100 runs Ring/Simple and the H100 Tree/Simple, with NCCL_NET_OVERHEAD=2000 as without."""
    env = {"NCCL_PROTO": "Simple", **overhead}
    machines = ("dgx-h100", "dgx-a100")
    report = checked(tmp_path, *(Host(name, name, "2.20.5", ranks=ranks, env=env) for name in machines))
    assert report.verdict is RanksVerdict.differing
    assert tuple(kind.node for kind in report.kinds) == machines
    assert reaches(report)["GPUs"] is Reach.parts
    picks = {
        tuple(pick.name.split(" ")[0] for pick in each.picks if pick is not None) for each in report.differing_picks
    }
    assert picks == {("Tree/Simple", "Ring/Simple")}


def test_a_variable_of_one_host_alone(tmp_path: Path) -> None:
    """Nccl #626: "message truncated", as NCCL is not using the same protocol on all ranks."""
    report = checked(tmp_path, Host("a", "dgx-a100"), Host("b", "dgx-a100").with_env(NCCL_PROTO="Simple"))
    assert report.verdict is RanksVerdict.differing
    assert reaches(report) == {"NCCL_PROTO": Reach.parts}


def test_releases_that_nobody_compares(tmp_path: Path) -> None:
    """Nccl #1328: "receiving 524288 bytes instead of 65536", a version or configuration mismatch between two ranks."""
    report = checked(tmp_path, Host("a", "dgx-a100", "2.20.5"), Host("b", "dgx-a100", "2.21.5"))
    assert report.verdict is RanksVerdict.differing
    assert reaches(report) == {"NCCL release": Reach.exchange}
    report = checked(tmp_path / "other", Host("a", nccl="2.21.5"), Host("b", nccl="2.22.3"))
    assert reaches(report) == {"NCCL release": Reach.parts}
    assert len(report.differing_picks) > 1000


def test_releases_that_nccl_compares(tmp_path: Path) -> None:
    report = checked(tmp_path, Host("a", nccl="2.23.4"), Host("b", nccl="2.24.3"))
    assert (report.verdict, reaches(report)) == (RanksVerdict.differing, {"NCCL release": Reach.start})


def test_a_host_with_fewer_adapters(tmp_path: Path) -> None:
    """Nccl #2428: one of two adapters of a host is shown in /sys, and cannot be opened."""
    whole = Host("a", "a100-4x-2nic", "2.30.7")
    first, second = whole.record(0)["adapters"]
    whole = with_processor(whole, INTEL)
    half = replace(whole, name="b", more={**whole.more, "adapters": [first, {**second, "opens": False}]})
    report = checked(tmp_path / "ignored", whole, half.with_env(NCCL_IGNORE_NET_MISMATCH="1"))
    assert [kind.node for kind in report.kinds] == [
        "a100-4x-2nic with cpu=GenuineIntel:6:143" + less for less in ("", " with nics=1")
    ]
    assert reaches(report) == {"adapters": Reach.alike}  # 1 is the default of the variable
    assert "preflight.adapters" in codes(report)
    refused = whole.with_env(NCCL_IGNORE_NET_MISMATCH="0")
    report = checked(tmp_path / "refused", refused, replace(half, env=refused.env))
    assert (report.verdict, reaches(report)) == (RanksVerdict.differing, {"adapters": Reach.start})
    earlier = [replace(host, nccl="2.29.7") for host in (refused, replace(half, env=refused.env))]
    assert checked(tmp_path / "earlier", *earlier).verdict is RanksVerdict.same


def test_a_slower_adapter_costs_time_only(tmp_path: Path) -> None:
    host = Host("a", nccl="2.28.9")
    slower = [{**adapter, "gbps": 200.0} for adapter in host.record(0)["adapters"]]
    report = checked(tmp_path, host, replace(host, name="b", more={"adapters": slower}))
    assert report.verdict is RanksVerdict.same
    assert reaches(report)["adapters"] in (Reach.alike, Reach.speed)
    assert report.cost is not None
    assert report.cost.ratio > 1.5


@pytest.mark.parametrize(
    ("name", "value", "reach", "verdict"),
    [
        ("NCCL_BUFFSIZE", "1048576", Reach.messages, RanksVerdict.differing),
        ("NCCL_IB_DISABLE", "1", Reach.network, RanksVerdict.differing),
        ("NCCL_DEBUG", "INFO", Reach.nothing, RanksVerdict.same),
        ("NCCL_CONFIG_INITIALIZER", "1", Reach.unknown, RanksVerdict.unknown),
        ("NCCL_MIN_NCHANNELS", "24", Reach.parts, RanksVerdict.differing),
        ("NCCL_NVLS_ENABLE", "0", Reach.alike, RanksVerdict.same),
    ],
)
def test_what_a_variable_of_one_host_reaches(
    name: str, value: str, reach: Reach, verdict: RanksVerdict, tmp_path: Path
) -> None:
    report = checked(tmp_path, Host("a", nccl="2.28.9"), Host("b", nccl="2.28.9").with_env(**{name: value}))
    assert (reaches(report), report.verdict) == ({name: reach}, verdict)


def test_what_frameworks_and_containers_call_nccl_is_none_of_its_variables(tmp_path: Path) -> None:
    report = checked(tmp_path, Host("a"), Host("b").with_env(NCCL_VERSION="2.15.5-1", NCCL_TESTS_DEVICE="0"))
    assert (report.verdict, report.differences) == (RanksVerdict.same, ())


def test_hosts_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    report = checked(tmp_path, Host("a", ranks=8), Host("b", ranks=4))
    assert [(kind.ranks, kind.hosts) for kind in report.kinds] == [(8, ("a",)), (4, ("b",))]
    assert "ranks of the host" in reaches(report)


def test_the_topology_on_record_is_the_hosts(tmp_path: Path) -> None:
    xml = tmp_path / "node.xml"
    xml.write_text(catalogue.load("hgx-h800").topology_xml)
    hosts = [Host(name, "hgx-h800", env={"NCCL_TOPO_DUMP_FILE": str(xml)}) for name in "ab"]
    named = collect.topology(collect.CollectedHost({}), hosts[0].env)
    assert named is not None
    assert named["sha256"] is not None
    hosts = [replace(host, more={"topology": dict(named), "gpus": []}) for host in hosts]
    report = checked(tmp_path / "records", hosts[0], hosts[1].with_env(NCCL_ALGO="Ring"))
    assert report.verdict is RanksVerdict.differing
    assert {Path(kind.node or "").name for kind in report.kinds} == {f"topology-{named['sha256'][:32]}.xml"}


@pytest.mark.parametrize(("nccl", "warned"), [("2.26.5", False), ("2.27.3", True), ("2.30.4", True), ("2.30.7", False)])
def test_later_communicators_on_merged_ports_are_warned_of(nccl: str, warned: bool, tmp_path: Path) -> None:
    xml = tmp_path / "node.xml"
    xml.write_text(with_two_ports(catalogue.load("dgx-h100").topology_xml, "functions"))
    hosts = [Host(name, nccl=nccl, env={"NCCL_TOPO_DUMP_FILE": str(xml)}) for name in "ab"]
    named = collect.topology(collect.CollectedHost({}), hosts[0].env)
    assert named is not None
    hosts = [replace(host, more={"topology": dict(named), "gpus": []}) for host in hosts]
    assert ("preflight.merged_adapters" in codes(checked(tmp_path / "records", *hosts))) is warned


def with_plugin(name: str, variables: dict[str, str], plugin_path: Path | str | None = None) -> Host:
    """A host whose ranks name this project's plugin, or another file, and have these variables."""
    env = {"NCCL_TUNER_PLUGIN": str(plugin_path or plugin.path()), **variables}
    of_env = collect.CollectedHost(env)
    plugins = {"tuner": collect.tuner_plugin(of_env, env["NCCL_TUNER_PLUGIN"]), "network": None}
    return Host(name, env=env, more={"table": collect.decision_table(of_env, env), "plugins": plugins})


def deployed(folder: Path, *hosts: Host) -> Path:
    """Records of a rank of each host."""
    for host in hosts:
        written(folder, host.record(0), None)
    return folder


TREE_TABLE = "nccl-tuner-table 1\nallreduce -> tree/simple channels=1\n"
SEALED = close(TREE_TABLE, 1)


@pytest.mark.parametrize("strict", [{}, {"NCCL_TUNER_STRICT": "1"}])
@pytest.mark.parametrize("broken", ["plugin", "bytes", "table", "cut", "hash", "no hash"])
def test_a_rank_that_would_go_without_its_table(tmp_path: Path, broken: str, strict: dict[str, str]) -> None:
    """Exit code 1, whatever is missing on one host of two; 0 where nothing is."""
    (tmp_path / "good.table").write_text(SEALED)
    (tmp_path / "cut.table").write_text(SEALED[:-9])
    (tmp_path / "libnccl_tuner_plugin.so").write_bytes(b"100 random bytes")
    right = {"NCCL_TUNER_TABLE": str(tmp_path / "good.table"), **strict}
    pinned = {**right, "NCCL_TUNER_TABLE_SHA256": sha256(tmp_path / "good.table")}
    other, file = dict(pinned), None
    if broken == "plugin":
        file = tmp_path / "gone" / "libnccl_tuner_plugin.so"
    elif broken == "bytes":
        file = tmp_path / "libnccl_tuner_plugin.so"
    elif broken in ("table", "cut"):
        other["NCCL_TUNER_TABLE"] = str(tmp_path / f"{broken}.table")
    else:
        other["NCCL_TUNER_TABLE_SHA256"] = "0" * 64 if broken == "hash" else ""
    good = with_plugin("a", pinned)
    run("preflight", "check", str(deployed(tmp_path / "same", good, with_plugin("b", pinned))), "allreduce", code=0)
    folder = deployed(tmp_path / "records", good, with_plugin("b", other, file))
    done = run("preflight", "check", str(folder), "allreduce", code=1)
    assert "kind B (1 ranks): " in done.stdout
    everywhere = deployed(tmp_path / "all", with_plugin("a", other, file), with_plugin("b", other, file))
    assert "would not be used" in run("preflight", "check", str(everywhere), "allreduce", code=1).stdout


def test_strict_without_a_table_that_shows_that_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TREE_TABLE)
    named = {"NCCL_TUNER_TABLE": str(tmp_path / "t")}
    run("preflight", "check", str(deployed(tmp_path / "a", with_plugin("a", named))), "allreduce", code=0)
    strict = with_plugin("a", {**named, "NCCL_TUNER_STRICT": "yes"})
    said = run("preflight", "check", str(deployed(tmp_path / "b", strict)), "allreduce", code=1).stdout
    assert f"{tmp_path}/t does not show that it is whole" in said


@pytest.mark.parametrize("other", ["", "NCCL_TUNER_JOB", "NCCL_PROFILER_PLUGIN", "decision table"])
def test_one_host_of_64_that_has_nobody_explore_is_seen(other: str, tmp_path: Path) -> None:
    """Ranks choose the same then, and the job measures no arm."""
    text = "nccl-tuner-table 1\nallreduce bytes=1M.. -> explore tree/simple | ring/ll128 | nccl every=10 block=10\n"
    same = {"NCCL_TUNER_JOB": "/shared/job", "NCCL_PROFILER_PLUGIN": "/x.so", "NCCL_TUNER_TABLE": str(tmp_path / "t")}
    (tmp_path / "t").write_text(close(text, 1))
    (tmp_path / "commented").write_text(close(text.replace(" 1\n", " 1\n# another\n"), 1))
    odd = {**same, **({"NCCL_TUNER_TABLE": str(tmp_path / "commented")} if other == "decision table" else {other: ""})}
    usual = [replace(with_plugin("a", same), name=f"node{number}", nccl="2.28.9") for number in range(63)]
    folder = deployed(tmp_path / "records", *usual, replace(with_plugin("b", odd), nccl="2.28.9"))
    said = run("preflight", "check", str(folder), "allreduce", code=0).stdout
    assert (f"explores, because ranks differ in {other}." in " ".join(said.split())) == bool(other)


def test_a_plugin_is_found_by_its_name(tmp_path: Path) -> None:
    shutil.copy(plugin.path(), tmp_path / "libnccl-tuner-ours.so")
    for name in ("ours", "libnccl-tuner-ours.so"):
        found = collect.tuner_plugin(collect.CollectedHost({"LD_LIBRARY_PATH": str(tmp_path)}), name)
        assert found
        assert found["library"]
        assert found["build"]
    assert collect.tuner_plugin(collect.CollectedHost({}), "ours") == {
        "path": "ours", "sha256": None, "library": False, "build": None
    }  # fmt: skip
    assert collect.tuner_plugin(collect.CollectedHost({}), "none") is None


def test_another_decision_table_on_one_host(tmp_path: Path) -> None:
    hosts = []
    for name, end in (("a", "1M"), ("b", "2M")):
        table = tmp_path / f"{name}.table"
        table.write_text(f"nccl-tuner-table 1\nallreduce bytes=64K..{end} -> ring/simple channels=2\n")
        hosts.append(with_plugin(name, {"NCCL_TUNER_TABLE": str(table)}))
    folder = tmp_path / "records"
    for host in hosts:  # a record of each
        written(folder, host.record(0), None)
    report = check(folder, PreflightQuery((ALLREDUCE,), Span(high=1 << 30)))
    assert reaches(report) == {"decision table": Reach.parts}
    assert (report.differing_picks[0].from_bytes, report.differing_picks[-1].to_bytes) == ((1 << 20) + 1, 2 << 20)
    run("preflight", "check", str(folder), "allreduce", "--to", "1M", code=0)
    run("preflight", "check", str(folder), "allreduce", code=1)


def test_a_tuner_plugin_that_is_not_ours(tmp_path: Path) -> None:
    other = {"plugins": {"tuner": {"path": "/x/libnccl-ofi-tuner.so", "sha256": "0" * 64}, "network": None}}
    report = checked(tmp_path, Host("a"), Host("b", more=other))
    assert (report.verdict, reaches(report)) == (RanksVerdict.unknown, {"tuner plugin": Reach.unknown})


def test_domains_of_several_hosts_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, Host("a"), Host("b").with_env(NCCL_ALGO="Ring"))
    done = run("preflight", "check", str(folder), "--machine", "gb200-nvl72", code=2)
    assert "NVLink domain" in done.stderr


def test_missing_twice_and_unreadable(tmp_path: Path) -> None:
    folder = write(tmp_path, Host("a"), Host("b"))
    for rank in (2, 9, 10):
        next(folder.glob(f"rank-{rank:06}.*")).unlink()
    (folder / "rank-000004.a.json").write_text("{")
    twice = as_json(folder / "rank-000005.a.json") | {"host": "c"}
    collect.written(str(folder), twice)
    report = check(folder, PreflightQuery((ALLREDUCE,), Span(high=1 << 30)))
    assert report.verdict is RanksVerdict.unknown
    assert report.missing == (2, 4, 9, 10)
    assert report.duplicates == {5: ("rank-000005.a.json", "rank-000005.c.json")}
    assert [each.file for each in report.unreadable] == ["rank-000004.a.json"]
    shown = run("preflight", "check", str(folder), "allreduce", code=3).stdout
    assert shown.startswith(
        "cannot be judged: ranks 2,4,9-10 are missing; 1 rank with more than one record; 1 file that cannot be read"
    )
    assert "Ranks 2,4,9-10 are missing" in shown
    assert "Rank 5 is recorded more than once: rank-000005.a.json and rank-000005.c.json" in shown
    assert "rank-000004.a.json is not readable" in shown


NO_RECORDS: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("/nowhere"),
    "folder": lambda path: path.mkdir(),
    "large": lambda path: path.write_bytes(b" " * (collect.MOST_RECORD_BYTES + 1)),
    "many values": lambda path: path.write_text(f"[{'[],' * 200_000}7]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    **{
        f"JSON {text}": lambda path, text=text: path.write_text(text)
        for text in ("null", "7", "[]", "{}", '{"boot": 7}')
    },
}


@pytest.mark.parametrize("kind", NO_RECORDS)
def test_what_is_no_record_is_named_and_neither_waits_nor_takes_memory(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path, Host("a"), Host("b"))
    kept = folder / "rank-000004.a.json"
    record = as_json(kept)
    kept.unlink()
    NO_RECORDS[kind](kept)
    report = check(folder, PreflightQuery((ALLREDUCE,), Span(high=1 << 30)))
    assert report.verdict is RanksVerdict.unknown
    assert [each.file for each in report.unreadable] == [kept.name]
    assert run("diagnose", str(folder), code=3).stdout
    if kind != "folder":  # whoever collects there writes its own over it
        collect.written(str(folder), record)
        assert check(folder, PreflightQuery((ALLREDUCE,), Span(high=1 << 30))).unreadable == ()


@pytest.mark.parametrize(("ranks_of_last", "hosts"), [(8, 2), (4, 2), (1, 2)])
def test_hosts_that_are_missing_are_as_many_as_their_ranks_need(ranks_of_last: int, hosts: int, tmp_path: Path) -> None:
    folder = write(tmp_path, Host("a"), Host("b"), Host("c"), Host("d", ranks=ranks_of_last))
    for rank in range(16, 24 + ranks_of_last):
        next(folder.glob(f"rank-{rank:06}.*")).unlink()
    report = check(folder, PreflightQuery((ALLREDUCE,), Span(high=1 << 30)))
    (assumed,) = (each for each in report.findings if each.code == "preflight.hosts_assumed")
    assert assumed.facts["hosts"] == hosts


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "not a record of preflight"),
        ('{"format": "nccl-tuner preflight", "version": 2}', "version 2, and this release reads version 1"),
        ('{"format": "nccl-tuner preflight", "version": 1}', "KeyError 'libraries'"),
        ("", "Expecting value"),
        ("\x00\xff", "has no record of a rank"),
    ],
)
def test_no_record_at_all(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "rank-000000.a.json").write_bytes(text.encode("latin-1"))
    done = run("preflight", "check", str(tmp_path), code=2)
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a record is, lists and dictionaries too."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*path, key)
        yield from leaves_of(each, (*path, key))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [None, [], {}, "x", -1, 1e400], ids=repr)
def test_records_with_wrong_values(wrong: Any, tmp_path: Path) -> None:
    """One line and no traceback, or an answer, whatever stands in the place of a value."""
    whole = Host("b").with_env(NCCL_ALGO="Ring").record(0) | {"rank": 1, "ranks": 2, "local_ranks": 1}
    whole["configuration_files"] = [{"place": "home", "path": "x", "variables": {"NCCL_PROTO": "LL"}}]
    whole["topology"] = {"variable": "NCCL_TOPO_FILE", "path": "x", "sha256": "0" * 64}
    whole["container"] = {"kind": "docker", "image": None}
    written(tmp_path, Host("a").record(0) | {"local_ranks": 1}, 0, 2)
    other = tmp_path / "rank-000001.b.json"
    for *path, last in leaves_of(whole):
        made = copy.deepcopy(whole)
        where: Any = made
        for key in path:
            where = where[key]
        where[last] = wrong
        other.write_text(json.dumps(made))
        with contextlib.suppress(TunerError):
            check(tmp_path, PreflightQuery((ALLREDUCE,), Span(high=1 << 20)))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in run("preflight", "check", str(tmp_path / "none"), code=2).stderr


def test_adapters_whose_speed_nobody_knows(tmp_path: Path) -> None:
    host = Host("a")
    unknown = [{**adapter, "gbps": None} for adapter in host.record(0)["adapters"]]
    report = checked(tmp_path, host, replace(host, name="b", more={"adapters": unknown}))
    (difference,) = report.differences
    assert [value.value for value in difference.values] == [
        "8 x 400 Gb/s InfiniBand",
        "8 x speed not known InfiniBand",
    ]


def test_gpus_that_no_machine_has(tmp_path: Path) -> None:
    hosts = [replace(Host(name), more={"gpus": [{"bus_id": "1", "device": "0xffff"}]}) for name in "ab"]
    report = checked(tmp_path, hosts[0], hosts[1].with_env(NCCL_PROTO="LL"))
    assert report.verdict is RanksVerdict.unknown
    assert "preflight.not_computed" in codes(report)
    report = checked(tmp_path, hosts[0], hosts[1].with_env(NCCL_PROTO="LL"), nodes=DescribedNodes("dgx-h100"))
    assert report.verdict is RanksVerdict.differing


@pytest.mark.parametrize("mine", [{}, {"NCCL_IB_HCA": "mlx5_0"}])
def test_what_only_a_known_machine_shows_is_not_the_same(mine: dict[str, str], tmp_path: Path) -> None:
    """Adapters of one rank alone, on hosts whose GPUs and adapters no record has."""
    hosts = [replace(Host(name), more={"gpus": [], "adapters": []}) for name in "ab"]
    report = checked(tmp_path, hosts[0], hosts[1].with_env(**mine))
    assert [each.what for each in report.differences] == [*mine]
    assert report.verdict is (RanksVerdict.unknown if mine else RanksVerdict.same)


def test_adapters_that_a_variable_leaves_are_those_of_the_machine_where_no_record_has_any(tmp_path: Path) -> None:
    hosts = [replace(Host(name), more={"adapters": []}) for name in "ab"]
    first = catalogue.load("dgx-h100").topology.nets[0].name
    report = checked(tmp_path, hosts[0], hosts[1].with_env(NCCL_IB_HCA=f"={first}"))
    (difference,) = report.differences
    assert (difference.what, difference.reach) == ("NCCL_IB_HCA", Reach.alike)


def test_names_of_kinds() -> None:
    assert [letters(number) for number in (0, 25, 26, 27, 702)] == ["A", "Z", "AA", "AB", "AAA"]


# The script.


def test_the_script_needs_the_standard_library_alone(tmp_path: Path) -> None:
    tree = ast.parse(SCRIPT.read_text("utf-8"), feature_version=(3, 7))
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom)]
    names = {
        name.split(".")[0]
        for each in imports
        for name in ([each.module or ""] if isinstance(each, ast.ImportFrom) else [alias.name for alias in each.names])
    }
    assert names <= sys.stdlib_module_names
    assert "ctypes" not in names
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), str(tmp_path)],
        env={"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "NCCL_ALGO": "Ring"},
        capture_output=True,
        text=True,
        check=True,
    )
    made = as_json(Path(done.stdout.strip()))
    assert [made[name] for name in ("rank", "ranks", "local_rank", "local_ranks")] == [3, 16, 3, 8]
    assert (made["launcher"], made["variables"]) == ("torchrun", {"NCCL_ALGO": "Ring"})


def test_the_command_prints_the_script() -> None:
    assert run("preflight", "collect", "--script").stdout == SCRIPT.read_text("utf-8")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "SLURM_PROCID": "9"}, ("torchrun", 1, 4, None)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, ("Open MPI", 2, 4, None)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, ("MPICH", 0, 2, 0)),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "16", "SLURM_LOCALID": "3"}, ("srun", 7, 16, 3)),
        ({"RANK": "x"}, (None, None, None, None)),
        ({}, (None, None, None, None)),
    ],
)
def test_who_started_the_ranks(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    found = collect.ranks(collect.CollectedHost(environment))
    assert tuple(found[name] for name in ("launcher", "rank", "ranks", "local_rank")) == expected


def host_of(root: Path, files: dict[str, str], environment: dict[str, str] | None = None) -> collect.CollectedHost:
    for name, text in files.items():
        path = root / name.removeprefix("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return collect.CollectedHost(environment or {}, str(root))


def test_what_sys_and_proc_say(tmp_path: Path) -> None:
    pci, infiniband = "/sys/bus/pci/devices/0000:1b:00.0", "/sys/class/infiniband/mlx5_0/ports/1"
    switch, net = "/sys/bus/pci/devices/0000:05:00.0", "/sys/class/net/eth0"
    host = host_of(
        tmp_path,
        {
            f"{pci}/vendor": "0x10de\n",
            f"{pci}/device": "0x2330\n",
            f"{pci}/class": "0x030200\n",
            f"{switch}/vendor": "0x10de\n",
            f"{switch}/device": "0x22a3\n",
            f"{switch}/class": "0x068000\n",
            f"{infiniband}/rate": "400 Gb/sec (4X NDR)\n",
            f"{infiniband}/state": "4: ACTIVE\n",
            f"{infiniband}/link_layer": "InfiniBand\n",
            f"{net}/operstate": "up\n",
            f"{net}/speed": "100000\n",
            f"{net}/device/x": "",
            "/proc/cpuinfo": "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\nprocessor : 1\n",
            "/sys/module/nvidia/version": "550.54.14\n",
        },
    )
    made = collect.record(host)
    assert made["gpus"] == [{"bus_id": "0000:1b:00.0", "device": "0x2330"}]
    (port,) = made["adapters"]
    facts = {"name": "mlx5_0", "port": "1", "gbps": 400.0, "active": True, "link": "InfiniBand"}
    assert port == {**facts, "opens": None}
    verbs = host_of(tmp_path, {"/sys/class/infiniband/mlx5_0/device/infiniband_verbs/uverbs0/dev": ""})
    assert collect.record(verbs)["adapters"] == [{**facts, "opens": False}]
    assert collect.record(host_of(tmp_path, {"/dev/infiniband/uverbs0": ""}))["adapters"] == [{**facts, "opens": True}]
    assert made["interfaces"] == [{"name": "eth0", "gbps": 100.0}]
    assert [made["cpu"][name] for name in ("vendor", "family", "model")] == ["AuthenticAMD", 25, 17]
    assert made["driver"] == "550.54.14"


def test_the_release_is_read_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnccl.so.2").write_bytes(b"\x7fELF" + b"\0" * 100 + b"NCCL version 2.21.5+cuda12.4\0")
    (first, *_) = collect.libraries(collect.CollectedHost({"LD_LIBRARY_PATH": f"/none:{folder}"}))
    assert (first["found_by"], first["release"], first["cuda"]) == ("LD_LIBRARY_PATH", "2.21.5", "12.4")
    (folder / "old.so").write_bytes(b"no release")
    (given, *_) = collect.libraries(collect.CollectedHost({"LD_LIBRARY_PATH": str(folder)}), str(folder / "old.so"))
    assert (given["found_by"], given["release"]) == ("given", None)


@pytest.mark.parametrize(("nccl", "algorithm"), [("2.22.3", "home"), ("2.23.4", "named")])
def test_the_order_of_nccls_files(nccl: str, algorithm: str, tmp_path: Path) -> None:
    home = collect.home()
    named = tmp_path / "named.conf"
    named.write_text("NCCL_ALGO=named\nNCCL_PROTO=named\n")
    host = host_of(
        tmp_path,
        {
            f"{home}/.nccl.conf": "#NCCL_PROTO=comment\nNCCL_ALGO=home\nNCCL_ALGO=second\nPATH=/x\n",
            "/etc/nccl.conf": "NCCL_ALGO=system\nNCCL_DEBUG=system\nNCCL_NTHREADS=256",
            str(named): named.read_text(),
        },
        {"NCCL_CONF_FILE": str(named), "NCCL_NTHREADS": "512"},
    )
    made = collect.record(host)
    made["libraries"] = [{"found_by": "given", "path": "x", "release": nccl, "cuda": None, "bytes": 1}]
    from tuner import release
    from tuner.jobs.preflight.reading import of_json

    settled = of_json(made).settled(release.load(nccl))
    assert (settled["NCCL_ALGO"], settled["NCCL_DEBUG"], settled["NCCL_NTHREADS"]) == (algorithm, "system", "512")
    assert settled.get("NCCL_PROTO") == ("named" if algorithm == "named" else None)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        written(tmp_path / "file", Host("a").record(0), 0)
    assert "DIR is missing" in run("preflight", "collect", code=2).stderr


def test_the_json_is_whole(tmp_path: Path) -> None:
    folder = write(tmp_path, Host("a"), Host("b", env_of_rank={3: {"NCCL_ALGO": "Ring"}}))
    done = run("preflight", "check", str(folder), "allreduce", "--json", code=1)
    found = json.loads(done.stdout)
    assert found["verdict"] == "not the same"
    assert found["differences"][0]["reach"] == "ranks choose differently"
    assert len(found["differing_picks"][0]["picks"]) == 2
    assert "kind   ranks" in run("preflight", "check", str(folder), "allreduce", code=1).stdout


def of_cloud(name: str, version: str | None, product: str = "p5.48xlarge", **env: str) -> Host:
    """A p5 whose network plugin is AWS's of a release; None: another file."""
    network = {"path": "/x/libnccl-net.so", "sha256": (version or "0").encode().hex().ljust(64, "0")}
    network |= {} if version is None else {"release": f"aws-ofi-nccl {version}"}
    more = {"plugins": {"tuner": None, "network": network}, "product": product}
    return Host(name, "aws-p5-rdma", "2.28.9", env, more=more)


def test_clouds_tuners_of_two_releases_are_compared_by_their_picks(tmp_path: Path) -> None:
    """1.18.0 and 1.21.1 pick differently on p5; 1.21.0 and 1.21.1 nowhere, yet they are other files."""
    hosts = [of_cloud(name, version) for name, version in zip("abcd", ("1.18.0", "1.21.1") * 2, strict=True)]
    report = checked(tmp_path / "parted", *hosts)
    assert (report.verdict, reaches(report)) == (RanksVerdict.differing, {"network plugin": Reach.parts})
    picks = [
        tuner.communicator("p5.48xlarge", nodes=4, nccl="2.28.9", tuner=f"aws-ofi-nccl={version}")
        for version in ("1.18.0", "1.21.1")
    ]
    for differing in report.differing_picks:
        for size in (differing.from_bytes, differing.to_bytes):
            alone = [each.pick("allreduce", size).algo_protos()[0] for each in picks]
            assert [(pick.algorithm, pick.protocol) for pick in differing.picks if pick] == alone
    alike = checked(tmp_path / "alike", *(of_cloud(name, f"1.21.{at % 2}") for at, name in enumerate("abcd")))
    assert reaches(alike) == {"network plugin": Reach.network}
    assert not alike.differing_picks
    off = [of_cloud(name, version, NCCL_TUNER_PLUGIN="none") for name, version in (("a", "1.18.0"), ("b", "1.21.1"))]
    assert not checked(tmp_path / "off", *off).differing_picks
    assert checked(tmp_path / "same", *(of_cloud(name, "1.21.1") for name in "abc")).verdict is RanksVerdict.same


def test_the_network_plugin_is_found_as_nccl_finds_it(tmp_path: Path) -> None:
    (tmp_path / "opt/lib").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf.d/000_efa.conf").write_text("/opt/lib\n")
    (tmp_path / "opt/lib/libnccl-net.so").write_bytes(b"\x7fELF..Initializing aws-ofi-nccl 1.19.0\0..")
    host = collect.CollectedHost({}, str(tmp_path))
    for name in (None, "libnccl-net.so"):
        found = collect.network_plugin(host, name)
        assert found is not None
        assert (found["path"], found["release"]) == ("/opt/lib/libnccl-net.so", "aws-ofi-nccl 1.19.0")
    (tmp_path / "opt/lib/libnccl-net-x.so").write_bytes(b"\x7fELF")
    unknown = collect.network_plugin(host, "x")
    assert unknown is not None
    assert unknown["release"] is None
    assert collect.network_plugin(host, "none") is None
    assert collect.network_plugin(collect.CollectedHost({}, str(tmp_path / "etc")), None) is None
