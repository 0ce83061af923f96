"""How each release loads a tuner plugin: its table, `nccl-tuner plugin env` and the oracle, against libnccl."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.support import next_tuner, prepared_children
from tests.support.available_releases import HERE
from tuner import plugin, release
from tuner.base import children
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection, of_picks
from tuner.emulator.tuner_plugin import ChunkQuestion, TunerAnswers, TunerQuestion
from tuner.machine import catalogue
from tuner.oracle import library, start
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.plugin import loading
from tuner.plugin.asked import FileTuner
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

LOADING = [name for name in HERE if release.load(name).plugin is not None]
WITHOUT = [name for name in HERE if name not in LOADING]
RECORDING = [name for name in LOADING if loading.interface(release.load(name)).version >= 3]
# Whose plugins hear whether buffers are registered
TOLD = [name for name in LOADING if loading.interface(release.load(name)).version >= 4]
AR = Collective.AllReduce

# Says which interface NCCL chose and what it was handed; prefers Tree/LL on two channels for AllReduce. A number is
# logged where an interface has no such argument.
SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#define EXPORT __attribute__((visibility("default")))
typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
static logger say;
static int start(int version, size_t ranks, size_t nodes, logger log) {
  say = log;
  say(3, ~0ul, "probe", 1, "PROBE v%d %zu %zu", version, ranks, nodes);
  return 0;
}
static int asked(int collective, size_t bytes, int pipelined, int registered) {
  say(3, ~0ul, "probe", 1, "PROBE asked %d %zu %d %d", collective, bytes, pipelined, registered);
  return collective == 4;
}
static int chosen(int *algorithm, int *protocol, int *channels) {
  *algorithm = 0, *protocol = 0, *channels = 2;
  return 0;
}
static int cheapest(float *costs, int *channels) {
  costs[0] = 0.0f, *channels = 2;
  return 0;
}
#define START(v) static int start##v(size_t r, size_t n, logger l, void **c) { *c = 0; return start(v, r, n, l); }
#define START_WITH_CONSTANTS(v) \
  static int start##v(void **c, uint64_t id, size_t r, size_t n, logger l, void *domains, double *constants) { \
    for (int i = 0; i < 144; i++) constants[i] *= FACTOR; \
    *c = 0; \
    return start(v, r, n, l); \
  }
static int start1(size_t r, size_t n, logger l) { return start(1, r, n, l); }
START(2) START(3) START(4) START_WITH_CONSTANTS(5) START_WITH_CONSTANTS(6)
static int ask1(int f, size_t b, int coll_net, int nvls, int p, int *algorithm, int *protocol, int *channels) {
  return asked(f, b, p, -1) ? chosen(algorithm, protocol, channels) : 0;
}
static int ask2(void *c, int f, size_t b, int coll_net, int nvls, int p, int *algorithm, int *protocol, int *channels) {
  say(3, ~0ul, "probe", 1, "PROBE can %d %d", coll_net, nvls);
  return ask1(f, b, coll_net, nvls, p, algorithm, protocol, channels);
}
static int ask3(void *c, int f, size_t b, int p, float *costs, int algorithms, int protocols, int *channels) {
  return asked(f, b, p, -1) ? cheapest(costs, channels) : 0;
}
static int ask4(void *c, int f, size_t b, int p, float *costs, int algorithms, int protocols, int registered,
                int *channels) {
  return asked(f, b, p, registered) ? cheapest(costs, channels) : 0;
}
static int end1(void) { return 0; }
static int end(void *c) { return 0; }
#define PLUGIN(v, ask, end) \
  EXPORT struct { const char *name; void *start, *ask, *end, *chunk; } ncclTunerPlugin_v##v = \
      {"probe", start##v, ask, end, NULL};
"""
EXPORTS = {
    1: "PLUGIN(1, ask1, end1)",
    2: "PLUGIN(2, ask2, end)",
    3: "PLUGIN(3, ask3, end)",
    4: "PLUGIN(4, ask4, end)",
    5: "PLUGIN(5, ask4, end)",
    6: "PLUGIN(6, ask4, end)",
}
Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A plugin that offers these interfaces, and multiplies the constants it is handed."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    made: dict[object, Path] = {}

    def make(versions: Iterable[int] = EXPORTS, factor: float = 1) -> Path:
        key = (*versions, factor)
        if key not in made:
            folder = tmp_path_factory.mktemp("plugin")
            source, target = folder / "plugin.c", folder / "not a lib.so"
            source.write_text(SOURCE + "\n".join(EXPORTS[version] for version in versions))
            options = ["-w", "-fPIC", "-shared", "-fvisibility=hidden", f"-DFACTOR={factor}"]
            subprocess.run([compiler, *options, str(source), "-o", str(target)], check=True)
            made[key] = target
        return made[key]

    return make


def oracle(name: str, file: Path | None, **changes: object) -> Oracle:
    env = changes.pop("env", {})
    topology = catalogue.load("dgx-h100").topology_xml
    return Oracle(OracleConfiguration(topology, 2, 2, name, env, plugin=file, **changes))  # type: ignore[arg-type]


def newest(name: str) -> int:
    return loading.interface(release.load(name)).version


def said(asked: Oracle) -> list[str]:
    return [line.partition("PROBE ")[2] for line in asked.log_lines() if "PROBE " in line]


def launch(asked: Oracle, size_bytes: int = 1 << 26, collective: Collective = AR, **how: bool) -> OracleLaunch:
    (launched,) = asked.launch(Request(collective, DataType.float32, Op.sum), [size_bytes], **how)
    return launched


def picked(launched: OracleLaunch) -> tuple[object, ...]:
    return launched.algorithm, launched.protocol, launched.channels, launched.threads


# --- the library ---


@pytest.mark.parametrize("name", LOADING)
def test_nccl_takes_the_newest_interface_that_the_table_names(compiled: Compile, name: str) -> None:
    with oracle(name, compiled()) as asked:
        launched = launch(asked)
        lines = said(asked)
    assert picked(launched)[:3] == (0, 0, 2)
    assert set(lines[:4]) == {f"v{newest(name)} 4 2"}
    registered = 0 if newest(name) >= 4 else -1
    assert {line for line in lines[4:] if not line.startswith("can")} == {f"asked 4 {1 << 26} 1 {registered}"}


@pytest.mark.each_choice
@pytest.mark.parametrize("version", EXPORTS)
@pytest.mark.parametrize("name", LOADING)
def test_interfaces_that_nccl_takes(compiled: Compile, name: str, version: int) -> None:
    """All from v2 on up to the newest; before there were costs, the newest alone."""
    valid = range(2, newest(name) + 1) if newest(name) > 2 else [newest(name)]
    if version in valid:
        with oracle(name, compiled([version])) as asked:
            assert picked(launch(asked))[:3] == (0, 0, 2)
    else:
        with pytest.raises(OracleFailed, match="NCCL did not load tuner plugin"):
            oracle(name, compiled([version]))


@pytest.mark.each_choice
@pytest.mark.parametrize("version", EXPORTS)
@pytest.mark.parametrize("name", LOADING)
def test_the_recorder_asks_a_plugin_as_nccl_does(compiled: Compile, name: str, version: int) -> None:
    file = compiled([version])
    if name not in RECORDING:
        with pytest.raises(BadInput, match=f"NCCL {name} gives plugins no costs to record: use 2.22 or later"):
            oracle(name, file, record_plugin=True)
        return
    if not 2 <= version <= newest(name):
        with pytest.raises(OracleFailed, match="NCCL did not load tuner plugin"):
            oracle(name, file, record_plugin=True)
        return
    with oracle(name, file) as plain, oracle(name, file, record_plugin=True) as recorded:
        for size in (1 << 10, 1 << 26):
            assert picked(launch(recorded, size)) == picked(launch(plain, size))
        assert said(recorded) == said(plain)
        if version == 2:
            assert "can 0 1" in said(plain) or not plain.facts.nvls_support
        costs = recorded.ask(Request(AR, DataType.float32, Op.sum), [1 << 26])
    assert np.argwhere(costs.before_us != costs.after_us).tolist() == [[0, 0, 0]]
    assert costs.channels.tolist() == [2]


@pytest.mark.parametrize("name", WITHOUT)
def test_a_release_without_tuner_plugins(compiled: Compile, name: str) -> None:
    with pytest.raises(BadInput, match=f"NCCL {name} has no tuner plugins: use 2.19"):
        oracle(name, compiled())
    with pytest.raises(BadInput, match=f"NCCL {name} has no tuner plugins: use 2.19"):
        loading.environment(release.load(name), plugin.path())


@pytest.mark.parametrize("name", LOADING)
def test_a_file_that_is_no_plugin_is_noticed(tmp_path: Path, name: str) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("not a library")
    complaint = r"NCCL did not load tuner plugin \S+libtext\.so; .*(Tuner: |TUNER/Plugin: )"
    with pytest.raises(OracleFailed, match=complaint):
        oracle(name, text)


@pytest.mark.parametrize("name", LOADING)
def test_a_relative_path(compiled: Compile, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = compiled()
    monkeypatch.chdir(file.parent)
    with oracle(name, Path(file.name)) as asked:
        assert picked(launch(asked))[:3] == (0, 0, 2)


@pytest.mark.each_choice
@pytest.mark.parametrize("length", [100, 254, 255])
@pytest.mark.parametrize("name", LOADING)
def test_the_longest_path(
    compiled: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, length: int
) -> None:
    """As the table says it when NCCL is given the path all the same; without that the oracle finds a way."""
    tail = "/libtest.so"
    folder = Path(f"{tmp_path}/{'x' * (length - len(str(tmp_path)) - len(tail) - 1)}")
    folder.mkdir()
    file = Path(f"{folder}{tail}")
    shutil.copy(compiled(), file)
    assert len(str(file)) == length
    oracle(name, file).close()
    monkeypatch.setattr(start, "_takes_path", lambda *_: True)
    if loading.takes_path(release.load(name), file):
        oracle(name, file).close()
    else:
        with pytest.raises(OracleFailed, match="NCCL did not load tuner plugin"):
            oracle(name, file)


@pytest.mark.parametrize("name", LOADING)
def test_the_child_has_what_env_says(
    compiled: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(children, "start", prepared_children.as_users_do)  # else it is forked and set afterwards
    file = tmp_path / "libprobe.so"
    shutil.copy(compiled(), file)
    says = loading.environment(release.load(name), file)
    with oracle(name, file) as asked:
        entries = Path(f"/proc/{asked.pid}/environ").read_bytes().decode().split("\0")
        has = dict(entry.split("=", 1) for entry in entries if entry)
        value = has["NCCL_TUNER_PLUGIN"]
        paths = [Path(folder) / value for folder in has["LD_LIBRARY_PATH"].split(":")]
        there = [path.resolve() for path in paths if path.is_file()]
    if says.prepend:
        assert says == loading.LoadingEnvironment({"NCCL_TUNER_PLUGIN": file.name}, {"LD_LIBRARY_PATH": str(tmp_path)})
        assert re.fullmatch(r"lib[^/]*\.so", value), "the oracle's name for it"
        assert there == [file]
    else:
        assert says.set == {"NCCL_TUNER_PLUGIN": value}
        assert value == str(file)


@pytest.mark.parametrize("name", LOADING)
def test_constants_handed_to_init(compiled: Compile, name: str) -> None:
    """Edits reach the costs exactly where the table says that the model keeps them."""
    kept = loading.interface(release.load(name)).keeps_constants
    if newest(name) < 5:
        assert kept is False, "none are handed out"
        return
    costs = []
    for factor in (1, 2):
        with oracle(name, compiled(factor=factor), record_plugin=True) as asked:
            costs.append(asked.costs(Request(AR, DataType.float32, Op.sum), [1 << 20]))
    assert bool((costs[0] != costs[1]).any()) == kept


# --- CUDA graphs ---


@pytest.mark.parametrize("name", LOADING)
def test_in_a_graph_nccl_says_that_buffers_are_registered(compiled: Compile, name: str) -> None:
    file = compiled()
    with oracle(name, file) as asked:
        for collective in Collective:
            launched = [launch(asked, 1 << 20, collective, captured=each) for each in (False, True, False)]
            assert len(set(map(picked, launched))) == 1
        flags = [line.split()[-1] for line in said(asked) if line.startswith("asked")]
    assert flags == ["0", "1", "0"] * 5 if name in TOLD else set(flags) == {"-1"}
    with oracle(name, file, env={"NCCL_GRAPH_REGISTER": "0"}) as asked:
        launch(asked, captured=True)
        assert said(asked)[-1].split()[-1] == ("0" if name in TOLD else "-1")


@pytest.mark.each_choice
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 2)])
@pytest.mark.parametrize("name", TOLD)
def test_in_a_graph_nccl_picks_as_with_registered_buffers(name: str, nodes: int, gpus: int) -> None:
    sizes = [1 << power for power in range(8, 33, 3)]
    with Oracle(OracleConfiguration(catalogue.load("dgx-h100").topology_xml, nodes, gpus, name, {})) as asked:
        for collective in Collective:
            request = Request(collective, DataType.float32, Op.sum)
            inside = asked.launch(request, sizes, captured=True)
            registered = asked.launch(replace(request, buffers=Buffers.registered), sizes)
            assert list(map(picked, inside)) == list(map(picked, registered))
        plain = asked.launch(Request(AR, DataType.float32, Op.sum), sizes)
        if nodes == 1:
            assert list(map(picked, plain)) != list(map(picked, registered))


@pytest.mark.parametrize("name", HERE)
def test_graphs_without_end(name: str) -> None:
    with Oracle(OracleConfiguration(catalogue.load("dgx-h100").topology_xml, 1, 2, name, {})) as asked:
        launched = asked.launch(Request(AR, DataType.float32, Op.sum), [1 << 26] * 3000, captured=True)
        assert len(set(map(picked, launched))) == 1


# --- plugins that misbehave ---


def test_a_plugin_that_hangs_is_named(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    source, file = tmp_path / "plugin.c", tmp_path / "hangs.so"
    source.write_text(
        "static int hang() { for (;;); }\n"
        'struct { const char *name; void *start, *ask, *end; } ncclTunerPlugin_v4 = {"hangs", hang, hang, hang};'
    )
    subprocess.run([compiler, "-w", "-fPIC", "-shared", str(source), "-o", str(file)], check=True)
    topology = catalogue.load("dgx-h100").topology_xml
    complaint = r"did not answer within 3 s \(timeout=\) while initialising 2 ranks with tuner plugin \S+hangs\.so"
    with pytest.raises(OracleFailed, match=complaint):
        Oracle(OracleConfiguration(topology, 1, 2, HERE[-1], {}, plugin=file), timeout_s=3)


# --- nccl-tuner plugin env ---

EXECUTABLE = Path(sys.executable).with_name("nccl-tuner")
TABLE = "nccl-tuner-table 1\nallreduce -> ring/ll\n"
SHELLS = [shell for shell in ("sh", "bash", "dash") if shutil.which(shell)]


def env(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(EXECUTABLE), "plugin", "env", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.each_choice
@pytest.mark.parametrize("before", [None, "/a b:/c"])
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["2.27.3", "2.28.9"])
def test_a_shell_evaluates_it(tmp_path: Path, name: str, shell: str, before: str | None) -> None:
    """A process started there finds the plugin as NCCL looks for it."""
    folder = tmp_path / "it's $HOME; a folder"
    folder.mkdir()
    (folder / "my.table").write_text(TABLE)
    load = "import ctypes, os; ctypes.CDLL(os.environ['NCCL_TUNER_PLUGIN']); print(*os.environb.items(), sep='\\n')"
    script = f'''set -eu; eval "$({EXECUTABLE} plugin env --nccl {name} --table my.table --strict)"
        exec {sys.executable} -c "{load}"'''
    variables = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    variables |= {} if before is None else {"LD_LIBRARY_PATH": before}
    run = subprocess.run([shell, "-c", script], capture_output=True, text=True, cwd=folder, env=variables, check=True)
    has = {key.decode(): value.decode() for key, value in map(eval, run.stdout.splitlines())}
    assert has["NCCL_TUNER_TABLE"] == str(folder / "my.table")
    assert has["NCCL_TUNER_TABLE_SHA256"] == hashlib.sha256(TABLE.encode()).hexdigest()
    assert has["NCCL_TUNER_STRICT"] == "1"
    if name == "2.27.3":
        assert has["NCCL_TUNER_PLUGIN"] == plugin.path().name
        assert has["LD_LIBRARY_PATH"] == ":".join(filter(None, [str(plugin.path().parent), before]))
    else:
        assert has["NCCL_TUNER_PLUGIN"] == str(plugin.path())
        assert has.get("LD_LIBRARY_PATH") == before


@pytest.mark.parametrize("shell", SHELLS)
def test_any_folder_survives_the_shell(shell: str) -> None:
    file = Path('/it\'s a "folder" & more/libplugin.so')
    lines = loading.environment(release.load("2.27.3"), file).exports()
    script = "\n".join([*lines, 'printf "%s|%s" "$LD_LIBRARY_PATH" "$NCCL_TUNER_PLUGIN"'])
    run = subprocess.run([shell, "-c", script], capture_output=True, text=True, env={}, check=True)
    assert run.stdout == f"{file.parent}|{file.name}"


def test_env_as_json() -> None:
    by_name, by_path = (json.loads(env("--json", "--nccl", name).stdout) for name in ("2.27.3", "2.27.5"))
    assert by_name == {
        "nccl_tuner_json": 1,
        "release": "2.27.3",
        "set": {"NCCL_TUNER_PLUGIN": plugin.path().name},
        "prepend": {"LD_LIBRARY_PATH": str(plugin.path().parent)},
    }
    assert by_path == {
        "nccl_tuner_json": 1,
        "release": "2.27.5",
        "set": {"NCCL_TUNER_PLUGIN": str(plugin.path())},
        "prepend": {},
    }


def test_env_takes_the_installed_release_or_the_newest() -> None:
    assert json.loads(env("--json").stdout)["release"] == (library.installed_release() or release.names()[-1])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--nccl", "2.18.3"], "NCCL 2.18.3 has no tuner plugins: use 2.19.3 or later"),
        (["--nccl", "2.99.1"], "no table for NCCL 2.99.1; valid: 2."),
        (["--table", "bad.table"], "bad.table:2: "),
        (["--table", "missing.table"], "missing.table: No such file or directory"),
    ],
)
def test_env_refuses(tmp_path: Path, words: list[str], complaint: str) -> None:
    (tmp_path / "bad.table").write_text(TABLE.replace("->", ">"))
    run = env(*words, folder=tmp_path)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert run.stderr.startswith(f"nccl-tuner: {complaint}")


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("/opt/plugin.so", "NCCL 2.27.3 finds /opt/plugin.so only if its name is lib*.so"),
        ("/a:b/libplugin.so", "NCCL 2.27.3 finds /a:b/libplugin.so by LD_LIBRARY_PATH only, which cannot hold"),
        ("/$LIB/libplugin.so", "by LD_LIBRARY_PATH only, which cannot hold this folder: use one without : ; $"),
    ],
)
def test_a_plugin_that_a_name_does_not_find(file: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=re.escape(complaint)):
        loading.environment(release.load("2.27.3"), Path(file))


@pytest.mark.parametrize("name", release.names())
def test_every_table_says_how_plugins_load(name: str) -> None:
    plugin = release.load(name).plugin
    if plugin is None:
        assert name.startswith("2.18.")
        return
    assert plugin.api in EXPORTS


SIZES = [1 << power for power in range(10, 31, 2)]
EXAMPLE = os.environ.get("NCCL_TUNER_TEST_NEXT")  # a tuner of somebody else, and what it reads from the environment

Launches = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next_tuner.build(tmp_path_factory.mktemp("next") / "libother.so")


def launches(name: str, file: Path | None, **env: str) -> tuple[Launches, list[str]]:
    """What is launched for every collective and size, and NCCL's log."""
    env |= {key: value for key, value in os.environ.items() if key.startswith("NCCL_TUNER_CONFIG") and EXAMPLE}
    topology = catalogue.load("dgx-h100").topology_xml
    with Oracle(OracleConfiguration(topology, 2, 2, name, env, plugin=file)) as asked:
        found: Launches = [
            (collective, size, each.algorithm, each.protocol, each.channels, each.threads, each.kernel)
            for collective in Collective
            for size, each in zip(
                SIZES, asked.launch(Request(collective, DataType.float32, Op.sum), SIZES), strict=True
            )
        ]
        return found, asked.log_lines()


def table_of(folder: Path, *rows: str) -> str:
    path = folder / "t"
    path.write_text("\n".join(["nccl-tuner-table 1", *rows, ""]))
    return str(path)


@pytest.mark.parametrize("name", LOADING)
def test_without_rows_launches_are_the_others_and_with_rows_ours(name: str, other: Path, tmp_path: Path) -> None:
    alone, _ = launches(name, other)
    none, _ = launches(name, None)
    assert alone != none
    for env in ({}, {"NCCL_TUNER_TABLE": table_of(tmp_path)}):
        chained, log = launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other), **env)
        assert chained == alone
        version = loading.interface(release.load(name)).version
        assert any(
            f'the tuner "next" is asked where the table has no row (ncclTunerPlugin_v{version}' in line for line in log
        )
    assert launches(name, plugin.path(), NCCL_TUNER_NEXT="none")[0] == none
    rows = table_of(tmp_path, "allreduce bytes=1M..16M -> tree/simple", "allgather bytes=..1M -> ring/ll")
    ours, _ = launches(name, plugin.path(), NCCL_TUNER_NEXT="none", NCCL_TUNER_TABLE=rows)
    both, _ = launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other), NCCL_TUNER_TABLE=rows)
    for of_both, of_ours, of_other in zip(both, ours, alone, strict=True):
        collective, size = of_both[:2]
        in_row = (collective is Collective.AllReduce and 1 << 20 <= size <= 1 << 24) or (
            collective is Collective.AllGather and size <= 1 << 20
        )
        assert of_both == (of_ours if in_row else of_other)


class NextTuner:
    """What :mod:`tests.support.next_tuner` answers, as the emulator asks it."""

    title = "next"
    settings: Mapping[str, str] = MappingProxyType({})

    def answers(self, question: TunerQuestion) -> TunerAnswers:
        if question.request.collective is not Collective.AllReduce:
            return TunerAnswers.none(len(question.nbytes))
        return TunerAnswers(np.where(question.nbytes >= 1 << 20, 5, 0), np.full(len(question.nbytes), 3))

    def breaks(self, communicator: Comm, request: Request) -> Sequence[int]:
        return [1 << 20]

    def may_flicker(self, communicator: Comm, request: Request) -> bool:
        return False

    def ignored_by(self, release: str) -> str | None:
        return None

    def why_not(self, communicator: Comm) -> str | None:
        return None

    def chunk_bytes(self, question: ChunkQuestion) -> int | None:
        return 4242

    def chunks_follow_choices(self, communicator: Comm) -> bool:
        return False


@pytest.mark.parametrize("name", LOADING)
def test_the_chain_answers_as_emulated(name: str, other: Path, tmp_path: Path) -> None:
    """Where the table writes nothing the other tuner decides; a row that leaves the call to NCCL is no such place."""
    rows = (
        "allreduce bytes=..16K -> nccl",
        "allreduce bytes=64K..256K -> nvls/simple | nccl",
        "allreduce bytes=1M -> nvls/simple",
        "allreduce bytes=4M..16M -> tree/simple channels=5",
        "allgather -> ring/ll",
    )
    file = Path(table_of(tmp_path, *rows))
    alone = Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=2)
    chained = replace(alone, tuner=FileTuner("table", file, NextTuner()))
    selections = [Selection(each.communicator()) for each in (alone, chained)]
    launched, _ = launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other), NCCL_TUNER_TABLE=str(file))
    differing, by_nccl = [], 0
    for collective, size, algorithm, protocol, channels, threads, _ in launched:
        theirs = (algorithm, protocol, channels, threads)
        request = Request(collective, DataType.float32, Op.sum)
        picks = [of_picks(each.pick(request, size))[0] for each in selections]
        ours = [(pick.algorithm, pick.protocol, pick.channels, pick.threads) for pick in picks]
        by_nccl += ours[0] == ours[1]
        differing += [(collective, size, ours[1], theirs)] if ours[1] != theirs else []
    assert not differing
    assert 0 < by_nccl < len(launched)


@pytest.mark.parametrize("name", LOADING)
def test_calls_that_fail_there_are_never_that_of_nccl(name: str, tmp_path: Path) -> None:
    other = next_tuner.build(tmp_path / "libother.so", fail_call=3)
    chained, log = launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other))
    assert chained == launches(name, None)[0]
    warnings = [line for line in log if "NCCL WARN TUNER" in line]
    assert warnings
    assert all("a call of the tuner that is asked where the table has no row failed" in line for line in warnings)


@pytest.mark.parametrize("name", LOADING)
def test_an_init_that_fails_there_is_said_and_nothing_else(name: str, tmp_path: Path) -> None:
    """The oracle takes no communicator that warned; that NCCL completed it is in the log."""
    other = next_tuner.build(tmp_path / "libother.so", fail_init=1)
    with pytest.raises(OracleFailed, match=r"NCCL warned \d times while initialising.*failed to start \(3\)") as raised:
        launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other))
    assert "Init COMPLETE" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("name", LOADING)
def test_the_default_is_the_tuner_in_the_library_of_the_network_plugin(name: str) -> None:
    none, _ = launches(name, None)
    chained, log = launches(name, plugin.path(), NCCL_TUNER_NEXT="")
    assert chained == none, "the oracle's own records and changes nothing"
    found = [line for line in log if 'the tuner "nccl-tuner recorder" is asked where the table has no row' in line]
    # The oracle's library has versions 3 to 6.
    assert bool(found) == (loading.interface(release.load(name)).version >= 3)


@pytest.mark.skipif(EXAMPLE is None, reason="NCCL_TUNER_TEST_NEXT names no tuner")
@pytest.mark.parametrize("name", LOADING)
def test_a_tuner_of_somebody_else(name: str) -> None:
    assert EXAMPLE is not None
    if loading.interface(release.load(name)).version < 3:
        pytest.skip("interfaces this old are of other sources")
    alone, _ = launches(name, Path(EXAMPLE))
    chained, log = launches(name, plugin.path(), NCCL_TUNER_NEXT=EXAMPLE)
    assert chained == alone
    assert [line for line in log if "is asked where the table has no row" in line]
