"""Differences planted among ranks that are alike: each is found, with its rank; harmless ones raise no alarm."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run
from tests.support.preflight_records import Host
from tuner import plugin
from tuner.base.findings import words
from tuner.base.names import Collective, DataType, Op
from tuner.base.nouns import Span
from tuner.base.records import sha256
from tuner.emulator.request import Request
from tuner.jobs.preflight import collect
from tuner.jobs.preflight.workflow import PreflightQuery, RanksVerdict, Report, check
from tuner.plugin.table.values import close

Record = dict[str, Any]
Change = Callable[[Record], None]
QUESTION = PreflightQuery((Request(Collective.AllReduce, DataType.float32, Op.sum),), Span(high=1 << 30))
ODD = 5  # the rank that differs, the last but two of eight on two hosts
TABLE = close("nccl-tuner-table 1\nallreduce bytes=64K..2M -> tree/simple channels=2\n", 1)
OTHER = close("nccl-tuner-table 1\nallreduce bytes=64K..1M -> tree/simple channels=2\n", 1)
VALID = close("nccl-tuner-table 1\n# valid: 2026-01-01..2036-01-01\nallreduce -> tree/simple channels=2\n", 1)


@dataclass(frozen=True)
class Job:
    """Two hosts of four ranks, with what all have alike; ``without``: names of its parts that are left out."""

    folder: Path
    env: Mapping[str, str]
    nccl: str = "2.28.9"

    def records(self) -> list[Record]:
        host = Host("node0", nccl=self.nccl, env=self.env, ranks=4)
        of_env = collect.CollectedHost(dict(self.env))
        plugins = {
            "tuner": collect.tuner_plugin(of_env, self.env.get("NCCL_TUNER_PLUGIN") or "none"),
            "network": None,
            "next": collect.tuner_plugin(of_env, self.env.get("NCCL_TUNER_NEXT") or "none"),
        }
        made = []
        for rank in range(8):
            record = replace(host, name=f"node{rank // 4}").record(rank % 4)
            record |= {"rank": rank, "ranks": 8, "plugins": plugins, "boot": f"{rank // 4:08x}-0000"}
            record |= {"table": collect.decision_table(of_env, self.env), "knows_home": True}
            record |= {"switch": collect.named_file(of_env, self.env.get("NCCL_TUNER_SWITCH"))}
            record |= {"interfaces": [{"name": "eth0", "gbps": 100.0}]}
            made.append(record)
        return made


def checked(folder: Path, records: list[Record]) -> Report:
    for record in records:
        copied = {**record, "table": record["table"] and dict(record["table"])}
        collect.written(str(folder), copied)  # type: ignore[arg-type]
    return check(folder, QUESTION)


def variable(**env: str) -> Change:
    return lambda record: record.update(variables={**record["variables"], **env})


def without(name: str) -> Change:
    return lambda record: record.update(variables={k: v for k, v in record["variables"].items() if k != name})


def put(**values: Any) -> Change:
    return lambda record: record.update(values)


def adapters(change: Callable[[list[Record]], list[Record]]) -> Change:
    return lambda record: record.update(adapters=change([dict(each) for each in record["adapters"]]))


def plugin_is(kind: str, value: Any) -> Change:
    return lambda record: record.update(plugins={**record["plugins"], kind: value})


FOREIGN = {"path": "/x/libnccl-ofi-tuner.so", "sha256": "0" * 64, "library": True, "build": None}
GONE = {"path": "/x/libnccl_tuner_plugin.so", "sha256": None, "library": False, "build": None}
NET = {"path": "/x/libnccl-net.so", "sha256": "1" * 64, "release": None}


def of_rate(gbps: float, count: int) -> Change:
    return adapters(lambda each: [{**port, "gbps": gbps} if at < count else port for at, port in enumerate(each)])


def of_link(link: str, count: int) -> Change:
    return adapters(lambda each: [{**port, "link": link} if at < count else port for at, port in enumerate(each)])


# By name: what is planted, the exit code, the code of the finding, and whether it is on a rank or on its whole host.
RANK, HOST = (ODD,), (4, 5, 6, 7)
Planted = tuple[Change, int, str, tuple[int, ...]]
PLANTED: dict[str, Planted] = {
    "no plugin": (lambda r: (plugin_is("tuner", None)(r), without("NCCL_TUNER_PLUGIN")(r))[0], 1, "parts", RANK),
    "a plugin that is not there": (plugin_is("tuner", GONE), 1, "parts", RANK),
    "a foreign plugin": (plugin_is("tuner", FOREIGN), 3, "tuner_not_emulated", RANK),
    "no table": (lambda r: (put(table=None)(r), without("NCCL_TUNER_TABLE")(r))[0], 1, "parts", RANK),
    "another switch": (put(switch={"path": "/s", "sha256": "2" * 64}), 1, "parts", RANK),
    "no switch": (lambda r: (put(switch=None)(r), without("NCCL_TUNER_SWITCH")(r))[0], 1, "parts", RANK),
    "a switch that is not there": (put(switch={"path": "/s", "sha256": None}), 1, "parts", RANK),
    "another job time": (variable(NCCL_TUNER_JOB_TIME="1800000000"), 1, "parts", RANK),
    "no job time": (without("NCCL_TUNER_JOB_TIME"), 1, "parts", RANK),
    "a next tuner": (plugin_is("next", FOREIGN), 3, "tuner_not_emulated", RANK),
    "a next tuner that is not there": (plugin_is("next", {**FOREIGN, "sha256": None}), 3, "tuner_not_emulated", RANK),
    "a table without its text": (put(table={"path": "/t", "sha256": "3" * 64}), 3, "table_text", RANK),
    "one slower adapter": (of_rate(200.0, 1), 0, "alike", HOST),
    "slower adapters": (of_rate(200.0, 8), 0, "alike", HOST),
    "an adapter of unknown speed": (of_rate(None, 1), 3, "adapters_not_placed", HOST),  # type: ignore[arg-type]
    "RoCE": (of_link("Ethernet", 8), 1, "networks", HOST),
    "one RoCE adapter": (of_link("Ethernet", 1), 1, "networks", HOST),
    "a list that selects nothing": (variable(NCCL_IB_HCA="mlx9"), 1, "networks", HOST),
    "a list that selects some": (variable(NCCL_IB_HCA="=mlx5_0"), 0, "alike", HOST),
    "no adapters": (put(adapters=[]), 1, "networks", HOST),
    "adapters that are down": (adapters(lambda e: [{**p, "active": False} for p in e]), 1, "networks", HOST),
    "adapters that cannot be opened": (adapters(lambda e: [{**p, "opens": False} for p in e]), 1, "networks", HOST),
    "disabled InfiniBand": (variable(NCCL_IB_DISABLE="1"), 1, "network", HOST),
    "sockets": (variable(NCCL_NET="Socket"), 1, "network", HOST),
    "a network plugin": (plugin_is("network", NET), 1, "network", HOST),
    "another algorithm": (variable(NCCL_ALGO="Ring"), 1, "parts", RANK),
    "another protocol": (variable(NCCL_PROTO="Simple"), 1, "parts", RANK),
    "more channels": (variable(NCCL_MIN_NCHANNELS="24"), 1, "parts", RANK),
    "other buffers": (variable(NCCL_BUFFSIZE="1048576"), 1, "messages", RANK),
    "an unknown variable": (variable(NCCL_CONFIG_INITIALIZER="1"), 3, "variable_not_known", RANK),
    "CollNet": (variable(NCCL_COLLNET_ENABLE="1"), 3, "collnet", RANK),
    "a file of variables": (
        put(configuration_files=[{"place": "system", "path": "/etc/nccl.conf", "variables": {"NCCL_ALGO": "Ring"}}]),
        1, "parts", RANK,
    ),
    "another release": (
        put(libraries=[{"found_by": "x", "path": "/y", "release": "2.27.3", "cuda": "12.4", "bytes": 9}]),
        1, "releases", RANK,
    ),
    "no library": (put(libraries=[]), 3, "no_library", RANK),
    "another job": (put(job="2"), 3, "jobs", RANK),
    "no job": (put(job=None), 3, "jobs", RANK),
    "another number of ranks": (put(ranks=16), 3, "worlds", RANK),
    "another year": (put(collected="2024-01-02T03:04:05Z"), 3, "ages", RANK),
    "yesterday": (put(collected="2026-01-01T03:04:05Z"), 3, "ages", RANK),
    "another name of the host": (put(host="node1.cluster"), 3, "two_names", RANK),
    "two hosts of one name": (put(host="node0"), 3, "one_name", HOST),
    "a rank twice": (put(rank=4, host="node2", boot="2"), 3, "twice", RANK),
    "fewer GPUs": (lambda r: r.update(gpus=r["gpus"][:-1]), 3, "not_computed", HOST),
    "other GPUs": (lambda r: r.update(gpus=[{**g, "device": "0xffff"} for g in r["gpus"]]), 3, "not_computed", HOST),
}  # fmt: skip

HARMLESS: dict[str, tuple[Change, tuple[int, ...]]] = {
    "InfiniBand not disabled": (variable(NCCL_IB_DISABLE="0"), HOST),
    "InfiniBand named": (variable(NCCL_NET="IB"), HOST),
    "the default buffers": (variable(NCCL_BUFFSIZE="4194304"), HOST),
    "the default buffers in hexadecimal": (variable(NCCL_BUFFSIZE="0x400000"), RANK),
    "an empty number": (variable(NCCL_BUFFSIZE=""), RANK),
    "no CollNet": (variable(NCCL_COLLNET_ENABLE="0"), RANK),
    "default chunks": (variable(NCCL_P2P_NET_CHUNKSIZE="131072"), RANK),
    "peer-to-peer not disabled": (variable(NCCL_P2P_DISABLE="0"), RANK),
    "adapters checked": (variable(NCCL_IGNORE_NET_MISMATCH="1"), RANK),
    "a log": (variable(NCCL_DEBUG="INFO"), RANK),
    "a log's file": (variable(NCCL_DEBUG_FILE="/x/%h"), RANK),
    "counts": (variable(NCCL_TUNER_STATS="/x/stats", NCCL_TUNER_LIVE="/dev/shm/x"), RANK),
    "a container's version": (variable(NCCL_VERSION="2.15.5-1"), HOST),
    "no network plugin": (variable(NCCL_NET_PLUGIN="none"), HOST),
    "no other tuner": (variable(NCCL_TUNER_NEXT="none"), RANK),
    "a list of all adapters": (variable(NCCL_IB_HCA="mlx5"), HOST),
    "other names of interfaces": (put(interfaces=[{"name": "ens1", "gbps": 25.0}]), HOST),
    "another path of the library": (
        lambda r: r.update(libraries=[{**each, "path": "/z"} for each in r["libraries"]]), HOST,
    ),
    "other addresses of GPUs": (lambda r: r.update(gpus=[{**g, "bus_id": "0"} for g in r["gpus"]]), HOST),
    "another driver": (put(driver="560.1"), HOST),
    "minutes later": (put(collected="2026-01-02T03:44:05Z"), HOST),
    "another container": (put(container={"kind": "docker", "image": "x"}), HOST),
}  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "t").write_text(TABLE)
    (tmp_path / "switch").write_text("# a switch\n")
    env = {
        "NCCL_TUNER_PLUGIN": str(plugin.path()),
        "NCCL_TUNER_TABLE": str(tmp_path / "t"),
        "NCCL_TUNER_TABLE_SHA256": sha256(tmp_path / "t"),
        "NCCL_TUNER_SWITCH": str(tmp_path / "switch"),
        "NCCL_TUNER_JOB_TIME": "1767000000",
    }
    return Job(tmp_path, env)


def planted(records: list[Record], change: Change, ranks: tuple[int, ...]) -> list[Record]:
    for rank in ranks:
        change(records[rank])
    return records


def test_ranks_that_are_alike_raise_no_alarm(job: Job, tmp_path: Path) -> None:
    report = checked(tmp_path / "records", job.records())
    assert (report.verdict, report.differences, report.refused) == (RanksVerdict.same, (), ())
    run("preflight", "check", str(tmp_path / "records"), "allreduce", "--to", "1G")


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found_with_its_ranks(name: str, job: Job, tmp_path: Path) -> None:
    change, code, finding, ranks = PLANTED[name]
    folder = tmp_path / "records"
    report = checked(folder, planted(job.records(), change, ranks))
    found = [each for each in report.findings if each.code == f"preflight.{finding}"]
    assert found, [each.code for each in report.findings]
    assert all(words(each) for each in report.findings)
    own = [value for each in report.differences for value in each.values if value.numbers == ranks]
    of_records = finding in ("jobs", "worlds", "ages", "two_names", "one_name", "twice")
    assert own or of_records
    done = run("preflight", "check", str(folder), "allreduce", "--to", "1G", code=code)
    assert done.stdout.splitlines()[0] != "all ranks choose the same" or code == 0


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_difference_raises_no_alarm(name: str, job: Job, tmp_path: Path) -> None:
    change, ranks = HARMLESS[name]
    report = checked(tmp_path / "records", planted(job.records(), change, ranks))
    assert report.verdict is RanksVerdict.same, [words(each) for each in report.findings]
    assert report.cost is None
    run("preflight", "check", str(tmp_path / "records"), "allreduce", "--to", "1G")


@pytest.mark.parametrize("name", ["no plugin", "a plugin that is not there"])
def test_no_plugin_is_no_alarm_where_there_is_no_table(name: str, job: Job, tmp_path: Path) -> None:
    plain = Job(job.folder, {"NCCL_TUNER_PLUGIN": job.env["NCCL_TUNER_PLUGIN"]})
    report = checked(tmp_path / "one", planted(plain.records(), PLANTED[name][0], RANK))
    assert (report.verdict, report.refused) == (RanksVerdict.same, ())
    everywhere = checked(tmp_path / "all", planted(plain.records(), PLANTED[name][0], tuple(range(8))))
    assert (everywhere.verdict, everywhere.refused) == (RanksVerdict.same, ())


def test_another_table_on_one_rank(job: Job, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(OTHER)
    records = job.records()
    records[ODD]["table"] = collect.decision_table(
        collect.CollectedHost({}), {"NCCL_TUNER_TABLE": str(tmp_path / "other")}
    )
    records[ODD]["variables"]["NCCL_TUNER_TABLE_SHA256"] = sha256(tmp_path / "other")
    report = checked(tmp_path / "records", records)
    assert report.verdict is RanksVerdict.differing
    assert [each.what for each in report.differences] == ["decision table"]


def test_a_time_counts_for_a_table_that_is_valid_for_one(job: Job, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(VALID)
    env = {name: value for name, value in job.env.items() if "SWITCH" not in name and "SHA256" not in name}
    for text, verdict in ((VALID, RanksVerdict.differing), (TABLE, RanksVerdict.same)):
        (tmp_path / "t").write_text(text)
        records = planted(Job(tmp_path, env).records(), PLANTED["another job time"][0], RANK)
        assert checked(tmp_path / verdict.name, records).verdict is verdict


def test_interfaces_count_where_there_is_no_other_network(job: Job, tmp_path: Path) -> None:
    """Hosts without RDMA, one of which has an interface of another speed."""
    records = job.records()
    for rank, record in enumerate(records):
        record["adapters"] = []
        record["interfaces"] = [{"name": "eth0", "gbps": 25.0 if rank in HOST else 100.0}]
    report = checked(tmp_path / "records", records)
    (difference,) = report.differences
    assert difference.what == "interfaces"
    assert difference.values[1].value in ("1 x 25 Gb/s", "1 x 100 Gb/s")
    assert report.cost is not None or report.verdict is not RanksVerdict.same


def test_two_hosts_of_one_name_leave_two_records(tmp_path: Path) -> None:
    for boot in ("aaaa-1", "bbbb-2"):
        record = Host("node").record(0) | {"rank": None, "ranks": None, "local_rank": None, "local_ranks": None}
        collect.written(str(tmp_path), record | {"boot": boot})  # type: ignore[arg-type]
    assert len(list(tmp_path.glob("host-node*.json"))) == 2
    assert check(tmp_path, QUESTION).verdict is RanksVerdict.unknown


MIXED = ["no plugin", "one slower adapter", "RoCE", "another algorithm", "no library", "another job", "fewer GPUs"]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), combinations(MIXED, 2))
def test_another_difference_never_makes_ranks_the_same(first: str, second: str, job: Job, tmp_path: Path) -> None:
    (change, code, _, ranks), (other, other_code, _, _) = PLANTED[first], PLANTED[second]
    records = planted(planted(job.records(), change, ranks), other, (2,))
    report = checked(tmp_path / "records", records)
    if 3 in (code, other_code):  # what ranks of an unknown library or host choose is not computed
        assert report.verdict is not RanksVerdict.same
    elif 1 in (code, other_code):
        assert report.verdict is RanksVerdict.differing


@pytest.mark.parametrize(("nccl", "algorithm"), [("2.29.7", "passwd"), ("2.30.7", "variable")])
def test_the_home_folder_is_that_of_the_release(nccl: str, algorithm: str, tmp_path: Path) -> None:
    from tuner import release
    from tuner.jobs.preflight.reading import of_json

    for folder, value in ((tmp_path / collect.home().lstrip("/"), "passwd"), (tmp_path / "own", "variable")):
        folder.mkdir(parents=True)
        (folder / ".nccl.conf").write_text(f"NCCL_ALGO={value}\n")
    host = collect.CollectedHost({"HOME": "/own"}, str(tmp_path))
    made: Any = collect.record(host)
    assert of_json(made).settled(release.load(nccl))["NCCL_ALGO"] == algorithm
    without_home: Any = collect.record(collect.CollectedHost({}, str(tmp_path)))
    settled = of_json(without_home).settled(release.load(nccl))
    assert settled.get("NCCL_ALGO") == ("passwd" if algorithm == "passwd" else None)


@pytest.mark.parametrize(("nccl", "algorithm"), [("2.29.7", "Ring\r"), ("2.30.7", "Ring")])
def test_a_file_with_windows_ends_of_lines_is_read_as_the_release_does(
    nccl: str, algorithm: str, tmp_path: Path
) -> None:
    from tuner import release
    from tuner.jobs.preflight.reading import of_json

    (tmp_path / "named").write_bytes(b"NCCL_ALGO=Ring\r\n")
    made: Any = collect.record(collect.CollectedHost({"NCCL_CONF_FILE": "/named"}, str(tmp_path)))
    assert of_json(made).settled(release.load(nccl))["NCCL_ALGO"] == algorithm


def test_a_named_file_that_is_not_there_keeps_the_home_folders_from_being_read(tmp_path: Path) -> None:
    from tuner import release
    from tuner.jobs.preflight.reading import of_json

    home = tmp_path / collect.home().lstrip("/")
    home.mkdir(parents=True)
    (home / ".nccl.conf").write_text("NCCL_ALGO=home\n")
    made: Any = collect.record(collect.CollectedHost({"NCCL_CONF_FILE": "/none"}, str(tmp_path)))
    assert "NCCL_ALGO" not in of_json(made).settled(release.load("2.28.9"))
    assert of_json(made).settled(release.load("2.22.3"))["NCCL_ALGO"] == "home"
