"""The tuner that is asked where the table has no row, through every version of the interface."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import command_line, next_tuner
from tests.support.plugin_calls import COSTS, answer, by_default, said
from tuner import plugin, release
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.plugin import loading
from tuner.plugin.dry_run import WARN, DryRun, PluginRefused, TunerCall

AR, AG = Collective.AllReduce, Collective.AllGather
TREE_LL, RING_SIMPLE, RING_LL = (
    (Algorithm.Tree, Protocol.LL),
    (Algorithm.Ring, Protocol.Simple),
    (Algorithm.Ring, Protocol.LL),
)
HEADER = "nccl-tuner-table 1"
SAME = -1  # of TREE_LL in the costs: the call was left alone
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    made: dict[object, Path] = {}

    def make(*versions: int, **how: int) -> Path:
        key = (*versions, *how.items())
        if key not in made:
            folder = tmp_path_factory.mktemp("next")
            made[key] = next_tuner.build(folder / "other.so", versions or next_tuner.VERSIONS, **how)
        return made[key]

    return make


def opened(version: int, next_value: object, folder: Path, *rows: str, **env: str) -> DryRun:
    table = folder / "t"
    table.write_text("\n".join([HEADER, *rows, ""]))
    env |= {"NCCL_TUNER_NEXT": str(next_value)}
    return DryRun(table, ranks=16, nodes=2, version=version, env=env)


def heard(run: DryRun) -> list[str]:
    """What the other tuner was asked."""
    return [line.text.removeprefix("NEXT ") for line in run.log if line.text.startswith("NEXT ")]


def newest(version: int, versions: tuple[int, ...]) -> int | None:
    return max((each for each in versions if each <= version), default=None)


OFFERS = [*((version,) for version in next_tuner.VERSIONS), (2, 4), (3, 5, 6), tuple(next_tuner.VERSIONS)]


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: "-".join(map(str, offer)))
@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_no_row_asks_the_newest_version_that_is_not_above_ours(
    build: Build, tmp_path: Path, version: int, offer: tuple[int, ...]
) -> None:
    expected = newest(version, offer)
    with opened(version, build(*offer), tmp_path, "broadcast -> ring/ll") as run:
        small, large = answer(run, TunerCall(AR, 5, registered=True)), answer(run, TunerCall(AR, 1 << 20, pipelined=3))
        other = answer(run, TunerCall(AG, 5))
        ours = answer(run, TunerCall(Collective.Broadcast, 5))
    assert other is None
    assert ours is not None
    if expected is None:
        assert (small, large) == (None, None)
        assert heard(run) == []
        assert [line for line in said(run) if f"has no ncclTunerPlugin_v{version}" in line]
        return
    assert (small, large) == ((*TREE_LL, 3), (*RING_SIMPLE, 3))
    lines = heard(run)
    assert lines[0].startswith("communicator 1") == (expected >= 5)
    registered = 1 if expected >= 4 else -1
    unregistered = 0 if expected >= 4 else -1
    supports = ["can 0 0" if version < 3 else "can 0 1"] if expected < 3 else []
    assert lines[expected >= 5 :] == [
        f"init v{expected} 16 2",
        f"asked 4 5 1 {registered}",
        *supports,
        f"asked 4 {1 << 20} 3 {unregistered}",
        *supports,
        f"asked 2 5 1 {unregistered}",
        "end",
    ]
    assert [line for line in said(run) if 'the tuner "next" is asked where the table has no row' in line]
    assert said(run, WARN) == []


@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_a_row_wins_and_the_other_is_not_asked(build: Build, tmp_path: Path, version: int) -> None:
    with opened(version, build(), tmp_path, "allreduce bytes=..9 -> ring/ll channels=5") as run:
        expected = 0 if version == 1 else 5
        assert answer(run, TunerCall(AR, 9)) == (*RING_LL, expected)
        assert not [line for line in heard(run) if line.startswith("asked")]
        assert answer(run, TunerCall(AR, 10)) == (*TREE_LL, 3)


@pytest.mark.parametrize("version", range(3, 8))
def test_a_cost_row_wins_and_the_other_is_not_asked(build: Build, tmp_path: Path, version: int) -> None:
    row = "cost allreduce bytes=..9 -> ring/ll latency-us=2 bandwidth-gbs=10"
    with opened(version, build(), tmp_path, row) as run:
        assert answer(run, TunerCall(AR, 9)) == (*RING_LL, 0)
        assert not [line for line in heard(run) if line.startswith("asked")]
        assert answer(run, TunerCall(AR, 10)) == (*TREE_LL, 3)


@pytest.mark.parametrize("version", range(3, 8))
def test_a_row_that_cannot_run_leaves_the_call_to_the_other(build: Build, tmp_path: Path, version: int) -> None:
    with opened(version, build(), tmp_path, "allreduce -> collnetchain/simple") as run:
        assert answer(run, TunerCall(AR, 10)) == (*TREE_LL, 3)


@pytest.mark.parametrize("row", ["allreduce bytes=..9 -> nccl", "allreduce bytes=..9 -> collnetchain/simple | nccl"])
@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_a_row_that_says_nccl_is_nccls_own_choice(build: Build, tmp_path: Path, version: int, row: str) -> None:
    with opened(version, build(), tmp_path, row) as run:
        assert answer(run, TunerCall(AR, 9)) is None
        assert not [line for line in heard(run) if line.startswith("asked")]
        assert answer(run, TunerCall(AR, 10)) == (*TREE_LL, 3)


@pytest.mark.parametrize("content", [None, "", "nccl-tuner-table 1\nwhat\n"])
@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_without_a_good_table_the_other_decides_all(
    build: Build, tmp_path: Path, version: int, content: str | None
) -> None:
    table = None if content is None else tmp_path / "t"
    if table and content is not None:
        table.write_text(content)
    env = {"NCCL_TUNER_NEXT": str(build())}
    with DryRun(table, ranks=16, nodes=2, version=version, env=env) as run:
        assert answer(run, TunerCall(AR, 10)) == (*TREE_LL, 3)
    assert heard(run)[-1] == "end"
    if table is None:
        assert "NCCL_TUNER_TABLE is not set: every choice is the other tuner's own" in said(run)


@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_a_strict_failure_ends_the_other_too(build: Build, tmp_path: Path, version: int) -> None:
    (tmp_path / "t").write_text("what\n")
    env = {"NCCL_TUNER_NEXT": str(build()), "NCCL_TUNER_STRICT": "1"}
    with pytest.raises(PluginRefused):
        DryRun(tmp_path / "t", ranks=16, nodes=2, version=version, env=env)


@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_its_init_may_fail(build: Build, tmp_path: Path, version: int) -> None:
    with opened(version, build(fail_init=1, constants=7), tmp_path, "broadcast -> ring/ll") as run:
        assert answer(run, TunerCall(AR, 5)) is None
        assert answer(run, TunerCall(Collective.Broadcast, 5)) is not None
    assert [line.rpartition("/")[2] for line in said(run, WARN)] == ["other.so failed to start (3): it is not asked"]
    assert not [line for line in heard(run) if not line.startswith(("init", "communicator"))]
    assert not run.constants.any(), "what it wrote there is taken back"


@pytest.mark.parametrize("offer", next_tuner.VERSIONS)
@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_its_calls_may_fail(build: Build, tmp_path: Path, version: int, offer: int) -> None:
    if offer > version:
        return
    with opened(version, build(offer, fail_call=6), tmp_path, "broadcast -> ring/ll") as run:
        assert [answer(run, TunerCall(AR, 5)) for _ in range(4)] == [None] * 4
        if offer == 6:
            assert run.chunk_bytes(AR, Algorithm.Tree, Protocol.LL, 77) == 77
    (line,) = said(run, WARN)
    assert line.startswith("a call of the tuner that is asked where the table has no row failed")
    assert f'{4 + (offer == 6)} calls of the tuner "next" failed' in said(run)


@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_its_end_comes_once_for_each_communicator(build: Build, tmp_path: Path, version: int) -> None:
    runs = [opened(version, build(), tmp_path) for _ in range(3)]
    for run in runs:
        run.close()
    log = [line for run in runs for line in heard(run)]
    inits = sum(line.startswith("init") for line in log)
    assert (inits, log.count("end")) == (3, 3)


@pytest.mark.parametrize("offer", [(1,), (1, 2)])
def test_v1_ends_those_alone_that_began(build: Build, tmp_path: Path, offer: tuple[int, ...]) -> None:
    file = build(*offer, fail_init=2)
    runs = [opened(1, file, tmp_path) for _ in range(3)]
    assert answer(runs[0], TunerCall(AR, 5)) == (*TREE_LL, 3)
    for run in runs:
        run.close()
    assert [line for run in runs for line in heard(run)].count("end") == 1


def test_v1_keeps_the_other_where_communicators_differ(build: Build, tmp_path: Path) -> None:
    env = {"NCCL_TUNER_NEXT": str(build()), "NCCL_TUNER_UNCHECKED": "1"}
    (tmp_path / "t").write_text(f"{HEADER}\nallreduce -> ring/ll\n")
    with DryRun(tmp_path / "t", ranks=16, nodes=2, version=1, env=env) as one:
        assert answer(one, TunerCall(AR, 5)) == (*RING_LL, 0)
        with DryRun(tmp_path / "t", ranks=8, nodes=1, version=1, env=env) as two:
            assert "every choice is the other tuner's own from here on" in said(two, WARN)[0]
            assert answer(two, TunerCall(AR, 5)) == (*TREE_LL, 3)


def test_chunks_of_what_the_other_decided(build: Build, tmp_path: Path) -> None:
    rows = ("allreduce bytes=..9 -> ring/ll chunk=64K", "allreduce bytes=10..19 -> ring/ll")
    with opened(6, build(), tmp_path, *rows) as run:
        assert run.chunk_bytes(AR, *RING_LL, 77) == 4242, "nothing was decided yet"
        run.ask(TunerCall(AR, 9), COSTS)
        assert run.chunk_bytes(AR, *RING_LL, 77) == 64 << 10
        run.ask(TunerCall(AR, 19), COSTS)
        assert run.chunk_bytes(AR, *RING_LL, 77) == 77
        run.ask(TunerCall(AR, 20), COSTS)
        assert run.chunk_bytes(AR, *TREE_LL, 77) == 4242
        assert heard(run)[-1] == "chunk 4 0/0"
    with opened(6, build(5), tmp_path) as run:
        run.ask(TunerCall(AR, 20), COSTS)
        assert run.chunk_bytes(AR, *TREE_LL, 77) == 77, "version 5 has none"


@pytest.mark.parametrize("version", [5, 6, 7])
def test_constants_of_the_table_win(build: Build, tmp_path: Path, version: int) -> None:
    row = "constant base-latency-us tree/ll 6.5"
    with opened(version, build(constants=7), tmp_path, row, NCCL_TUNER_CONSTANTS="1") as run:
        assert run.constants[:3].tolist() == [6.5, 7, 7]


# Which library

ALL = set(next_tuner.VERSIONS)


def answering(folder: Path, loaded: str = "", value: str = "", **env: str) -> set[int]:
    """The versions of the interface by which another tuner answers."""
    asked = by_default(folder, ALL, loaded, value, **env)
    assert asked.keys() == ALL
    return {version for version, (answered, _) in asked.items() if answered}


@pytest.mark.parametrize("value", ["none", "None"])
@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_none_is_none(tmp_path: Path, version: int, value: str) -> None:
    with opened(version, value, tmp_path) as run:
        assert answer(run, TunerCall(AR, 5)) is None
    assert not [line for line in said(run) if "tuner is asked" in line]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_never_itself(tmp_path: Path, version: int, copied: bool) -> None:
    file = plugin.path()
    if copied:
        file = Path(shutil.copy(file, tmp_path / "copy.so"))
    with opened(version, file, tmp_path) as run:
        assert answer(run, TunerCall(AR, 5)) is None
    assert [line for line in said(run) if "is this plugin itself: no other tuner is asked" in line]


def test_a_tuner_that_is_loaded_for_all_libraries(tmp_path: Path) -> None:
    """Its symbols come before the plugin's own, and it is not taken for the plugin."""
    other = next_tuner.build(tmp_path / "other.so")
    assert answering(tmp_path, value=str(other), LD_PRELOAD=str(other)) == ALL


def test_never_in_a_circle(tmp_path: Path) -> None:
    """A tuner that asks this plugin, which asks that tuner."""
    source = tmp_path / "wrap.c"
    file = tmp_path / "wrap.so"
    source.write_text(r"""
        #include <dlfcn.h>
        #include <stddef.h>
        struct tuner { const char *name; int (*init)(size_t, size_t, void *, void **); void *ask; int (*end)(void *); };
        static struct tuner *inner;
        static int init(size_t ranks, size_t nodes, void *logger, void **context) {
            inner = dlsym(dlopen(INNER, RTLD_NOW), "ncclTunerPlugin_v4");
            return inner->init(ranks, nodes, logger, context);
        }
        static int ask() { return 0; }
        static int end(void *context) { return inner->end(context); }
        struct tuner ncclTunerPlugin_v4 = {"wrap", init, ask, end};
    """)
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    inner = f'-DINNER="{plugin.path()}"'
    subprocess.run([compiler, "-w", "-fPIC", "-shared", inner, source, "-o", file, "-ldl"], check=True)
    for _ in range(3):
        with opened(4, file, tmp_path) as run:
            assert answer(run, TunerCall(AR, 5)) is None
        assert len([line for line in said(run) if "is asked where the table has no row" in line]) == 1
        assert said(run, WARN) == []


@pytest.mark.parametrize("version", next_tuner.VERSIONS)
def test_a_library_that_is_not_there(tmp_path: Path, version: int) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    for value in (tmp_path / "absent.so", "absent", text, "x" * 300, "x" * 5000, "%s%n"):
        with opened(version, value, tmp_path, "broadcast -> ring/ll") as run:
            assert answer(run, TunerCall(AR, 5)) is None
            assert answer(run, TunerCall(Collective.Broadcast, 5)) is not None
        (line,) = said(run, WARN)
        assert line.startswith("NCCL_TUNER_NEXT=")
        assert line.endswith("no other tuner is asked")


def test_a_name_is_a_part_of_a_file_name(tmp_path: Path) -> None:
    next_tuner.build(tmp_path / "libnccl-tuner-other.so")
    assert answering(tmp_path, value="other") == ALL
    assert answering(tmp_path, value="libnccl-tuner-other.so") == ALL
    assert answering(tmp_path) == set()


@pytest.mark.slow
def test_the_default_is_the_tuner_that_nccl_would_find(tmp_path: Path) -> None:
    finding = ALL - {1}  # 2.19 and 2.20 look for a tuner nowhere
    assert answering(tmp_path) == set()
    next_tuner.build(tmp_path / "libnccl-net.so")
    assert answering(tmp_path, "libnccl-net.so") == finding
    assert answering(tmp_path) == {2, 3}, "from 2.24 on only what is loaded already"
    assert answering(tmp_path, "libnccl-net.so", NCCL_NET_PLUGIN="none") == set()
    next_tuner.build(tmp_path / "libnccl-net-cloud.so")
    asked = by_default(tmp_path, ALL, "libnccl-net-cloud.so", NCCL_NET_PLUGIN="cloud")
    assert {version for version, (answered, _) in asked.items() if answered} == finding
    assert {version for version, (_, log) in asked.items() if "libnccl-net-cloud.so)" in log} == finding
    shutil.copy(plugin.path(), tmp_path / "libnccl-tuner.so")
    assert answering(tmp_path, "libnccl-net.so") == finding, "this plugin itself is passed over"
    next_tuner.build(tmp_path / "libnccl-tuner.so")
    asked = by_default(tmp_path, ALL, "libnccl-net.so")
    assert {version for version, (answered, _) in asked.items() if answered} == finding
    assert {version for version, (_, log) in asked.items() if "libnccl-tuner.so)" in log} == finding


NCCL_OF_A_VERSION = r"""
    #include <dlfcn.h>
    #include <stdarg.h>
    #include <stddef.h>
    #include <stdio.h>
    typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
    struct tuner { const char *name; int (*init)(size_t, size_t, logger, void **); };
    int ncclGetVersion(int *version) { *version = VERSION; return 0; }
    static void say(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
        va_list values;
        va_start(values, format);
        vprintf(format, values);
        puts("");
        va_end(values);
    }
    int run(const char *plugin) {
        void *context;
        return ((struct tuner *)dlsym(dlopen(plugin, RTLD_NOW), "ncclTunerPlugin_v4"))->init(16, 2, say, &context);
    }
"""


@pytest.mark.parametrize(("version", "opens"), [(22403, True), (22501, True), (22602, False), (22707, False)])
def test_nccl_before_2_26_opens_the_network_plugin_for_its_tuner(tmp_path: Path, version: int, opens: bool) -> None:
    """That of a library which is no good for a network too: NCCL has closed it again by then."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    source, nccl = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text(NCCL_OF_A_VERSION)
    flags = [f"-DVERSION={version}", "-w", "-fPIC", "-shared"]
    subprocess.run([compiler, *flags, source, "-o", nccl, "-ldl"], check=True)
    next_tuner.build(tmp_path / "libnccl-net.so")
    run = f"import ctypes; ctypes.CDLL({str(nccl)!r}).run({str(plugin.path()).encode()!r})"
    environment = {name: text for name, text in os.environ.items() if not name.startswith("NCCL_")}
    environment |= {"LD_LIBRARY_PATH": str(tmp_path), "NCCL_DEBUG": "INFO"}
    ran = subprocess.run([sys.executable, "-c", run], env=environment, capture_output=True, text=True, check=True)
    assert ("is asked where the table has no row" in ran.stdout) == opens


def test_of_several_network_plugins_the_last_that_is_loaded(tmp_path: Path) -> None:
    for name in "abc":
        next_tuner.build(tmp_path / f"libnccl-net-{name}.so")
    loaded = "libnccl-net-a.so,libnccl-net-b.so"
    assert "libnccl-net-b.so)" in by_default(tmp_path, [5], loaded, NCCL_NET_PLUGIN="a,b,c")[5][1]
    assert "libnccl-net-a.so)" in by_default(tmp_path, [5], loaded, NCCL_NET_PLUGIN=",a,,c,")[5][1]
    assert not by_default(tmp_path, [5], loaded, NCCL_NET_PLUGIN=f"{'a' * 999},c")[5][0]


def test_a_network_plugin_without_tuner_or_with_a_newer_one(tmp_path: Path) -> None:
    next_tuner.build(tmp_path / "libnccl-net.so", ())
    assert "tuner" not in by_default(tmp_path, [5], "libnccl-net.so")[5][1].replace("TUNER", "")
    next_tuner.build(tmp_path / "libnccl-net.so", (6,))
    answered, log = by_default(tmp_path, [5], "libnccl-net.so")[5]
    assert not answered
    assert "the tuner in the library of NCCL's network plugin has none of ncclTunerPlugin_v2 to v5" in log


def test_named_answers_are_untouched_by_the_plugin(build: Build, tmp_path: Path) -> None:
    with opened(2, build(2), tmp_path) as run:
        assert run.name(TunerCall(AR, 5, collnet=True, nvls=True)) == (TREE_LL, 3)
    assert "can 1 1" in heard(run)


@pytest.mark.parametrize(
    ("given", "written"), [("none", "none"), ("ofi", "ofi"), ("/a/../lib/libx.so", "/lib/libx.so"), (None, None)]
)
def test_env_names_the_other(given: str | None, written: str | None) -> None:
    says = loading.environment(release.load("2.28.9"), plugin.path(), following=given)
    assert says.set.get("NCCL_TUNER_NEXT") == written
    words = ["plugin", "env", "--nccl", "2.28.9", *(["--next", given] if given else [])]
    printed = command_line.run(*words).stdout
    assert (f"export NCCL_TUNER_NEXT={written}\n" in printed) == (written is not None)
