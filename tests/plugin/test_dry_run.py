"""`plugin dry-run`: NCCL's pick beside the one with a table, held against libnccl with the plugin."""

import json
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tuner import plugin, release
from tuner.base.errors import BadInput, BadTable
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.plugin import trial
from tuner.plugin.trial import Say
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

AR, AG = Collective.AllReduce, Collective.AllGather
LOADING = [name for name in HERE if release.load(name).plugin is not None]
ROWS = """nccl-tuner-table 1
allreduce bytes=64K..4M nodes=2 -> nvls/simple | ring/simple
allreduce bytes=16M.. -> pat/simple
allgather registered=yes -> ring/simple channels=2
allgather bytes=..1K -> nccl
allgather bytes=..64K pipelined=2.. -> ring/ll
cost allreduce bytes=..64 -> ring/ll128 latency-us=1 bandwidth-gbs=2
cost allreduce bytes=..64 -> tree/ll never
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "a.table"
    path.write_text(ROWS)
    return path


def selection(nccl: str, nodes: int = 2, gpus: int = 2, **environment: str) -> Selection:
    machine = Scenario(nccl=nccl, machine="dgx-h100", nodes=nodes, gpus_per_node=gpus, environment=environment)
    return Selection(machine.communicator())


def request(collective: Collective, pipelined: int = 1, buffers: Buffers = Buffers.plain) -> Request:
    return Request(collective, DataType.float32, Op.sum, pipelined=pipelined, buffers=buffers)


def algo_proto(pick: trial.TrialPick | None) -> str:
    assert pick is not None
    return f"{pick.algorithm.name}/{pick.protocol.name}"


@pytest.mark.live
@pytest.mark.parametrize("unchecked", ["0", "1"])
@pytest.mark.parametrize("name", LOADING)
def test_libnccl_picks_the_same(name: str, unchecked: str, table: Path) -> None:
    sizes = [16, 64, 128, 1 << 10, 64 << 10, 1 << 20, 4 << 20, (4 << 20) + 16, 16 << 20, 1 << 30]
    emulated = selection(name)
    env = {"NCCL_TUNER_TABLE": str(table), "NCCL_TUNER_UNCHECKED": unchecked}
    configuration = OracleConfiguration(catalogue.load("dgx-h100").topology_xml, 2, 2, name, env, plugin=plugin.path())
    with Oracle(configuration) as library:
        for collective in (AR, AG):
            trials = trial.run(table, emulated, request(collective), sizes, {"NCCL_TUNER_UNCHECKED": unchecked})
            real = library.launch(Request(collective, DataType.float32, Op.sum), sizes)
            for each, launched in zip(trials.sizes, real, strict=True):
                assert each.picked is not None
                expected = each.picked.algorithm, each.picked.protocol, each.picked.channels
                assert (launched.algorithm, launched.protocol, launched.channels) == expected, each


@pytest.mark.live
@pytest.mark.parametrize("buffers", [Buffers.plain, Buffers.registered])
@pytest.mark.parametrize("name", LOADING)
def test_channels_of_a_row_at_sizes_for_which_nccl_has_fewer(name: str, buffers: Buffers, tmp_path: Path) -> None:
    """More than NCCL's own up to 2.30, no more than those later."""
    path = tmp_path / "t"
    path.write_text("nccl-tuner-table 1\nallreduce -> ring/simple channels=5\nallgather -> nvls/simple channels=3\n")
    emulated, env = selection(name, 1, 4), {"NCCL_TUNER_TABLE": str(path)}
    configuration = OracleConfiguration(catalogue.load("dgx-h100").topology_xml, 1, 4, name, env, plugin=plugin.path())
    sizes = [16 << power for power in range(24)]
    with Oracle(configuration) as library:
        for collective in (AR, AG):
            like = request(collective, buffers=buffers)
            tried = trial.run(path, emulated, like, sizes).sizes
            expected = [(algo_proto(each.picked), each.picked.channels) for each in tried if each.picked]
            real = library.launch(like, sizes)
            assert expected == [(f"{one.algorithm.name}/{one.protocol.name}", one.channels) for one in real]


def test_rows_times_and_log(table: Path) -> None:
    trials = trial.run(table, selection("2.28.9"), request(AR), [64, 65, 1 << 20, 16 << 20])
    small, beyond, decided, impossible = trials.sizes
    assert trials.interface == 5
    assert (algo_proto(small.own), algo_proto(small.picked), small.cost) == ("Ring/LL", "Ring/LL128", 7)
    assert small.picked is not None
    assert small.picked.time_us == pytest.approx(1.032)
    assert (beyond.own, beyond.decision, beyond.cost) == (beyond.picked, None, None)
    assert (algo_proto(decided.picked), decided.decision, decided.unavailable) == ("Ring/Simple", 2, None)
    assert decided.picked is not None
    assert decided.own is not None
    assert decided.picked.time_us > decided.own.time_us
    assert (impossible.picked, impossible.decision, impossible.unavailable) == (impossible.own, None, 3)
    assert "4 calls: 1 decided by the table, 1 with its costs, 1 matched a row" in trials.log[-1].text


def test_buffers_and_operations_reach_the_rows(table: Path) -> None:
    chosen = selection("2.28.9")
    plain = trial.run(table, chosen, request(AG), [512, 1 << 20]).sizes
    told = trial.run(table, chosen, request(AG, buffers=Buffers.registered), [512, 1 << 20]).sizes
    several = trial.run(table, chosen, request(AG, pipelined=2), [512, 2048]).sizes
    assert [each.decision for each in plain] == [None, None]
    assert [each.decision for each in told] == [4, 4]
    assert told[1].picked is not None
    assert told[1].picked.channels == 2
    assert [each.decision for each in several] == [None, 6]
    for older in ("2.21.5", "2.22.3"):
        (old,) = trial.run(table, selection(older), request(AG, buffers=Buffers.registered), [1 << 20]).sizes
        assert (old.decision, old.unavailable) == (None, None), f"{older} does not say which buffers are registered"


def test_a_window_that_leaves_for_a_symmetric_kernel_asks_nobody(table: Path) -> None:
    trials = trial.run(table, selection("2.28.9", nodes=1), request(AG, buffers=Buffers.window), [1 << 10])
    assert trials.sizes[0].picked is None
    assert str(trials.sizes[0].bypass and trials.sizes[0].bypass.name).startswith("symmetric kernel")
    assert ": 0 calls:" in trials.log[-1].text


LOW_LATENCY = "symmetric kernel AllReduce_AGxLLMC_R"
OTHER_THAN_LL = "nccl-tuner-table 1\nallreduce bytes=..4K -> ring/simple channels=2\nallreduce bytes=1G.. -> ring/ll\n"


@pytest.mark.parametrize(
    ("nccl", "buffers", "say", "line"),
    [
        ("2.28.9", Buffers.window, Say.none, None),
        ("2.29.2", Buffers.window, Say.choice, 2),  # asks for the protocol of the classic path, and Simple is not LL
        ("2.30.7", Buffers.window, Say.none, None),
        ("2.30.7", Buffers.plain, Say.choice, 2),
        ("2.32.3", Buffers.window, Say.none, None),
    ],
)
def test_a_table_takes_calls_off_kernels_of_low_latency(
    nccl: str, buffers: Buffers, say: Say, line: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    path.write_text(OTHER_THAN_LL)
    chosen = selection(nccl, 1, 8, NCCL_SYM_NOWIN_ENABLE="1")
    (tried,) = trial.run(path, chosen, request(AR, buffers=buffers), [1 << 10]).sizes
    assert tried.own is None
    assert tried.own_bypass is not None
    assert (tried.own_bypass.name, tried.tuner, tried.decision) == (LOW_LATENCY, say, line)
    if line is None:
        assert (tried.picked, tried.bypass) == (None, tried.own_bypass)
    else:
        assert (algo_proto(tried.picked), tried.bypass) == ("Ring/Simple", None)


def test_a_table_gives_calls_to_kernels_of_low_latency(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(OTHER_THAN_LL)
    chosen = selection("2.30.7", 1, 8, NCCL_SYM_NOWIN_ENABLE="1")
    small, large = trial.run(path, chosen, request(AR), [1 << 14, 1 << 30]).sizes
    assert (small.tuner, small.bypass, small.decision) == (Say.protocol, small.own_bypass, None)
    assert (large.tuner, algo_proto(large.own), large.decision) == (Say.protocol, "NVLS/Simple", 3)
    assert large.bypass is not None
    assert large.bypass.name == LOW_LATENCY
    assert large.bypass.time_us is not None
    described = "--machine", "dgx-h100", "--nccl", "2.30.7", "--env", "NCCL_SYM_NOWIN_ENABLE=1"
    outcome = run("plugin", "dry-run", str(path), "allreduce", *described, "--bytes", "1K,16K,1G")
    says = [line.split("   ")[-1].strip() for line in outcome.stdout.splitlines()[2:7]]
    assert (says[0], says[2:]) == ("tuner", ["its choice", "its protocol", "its protocol"])


def test_nccls_own_variables_mask(table: Path) -> None:
    trials = trial.run(table, selection("2.28.9", NCCL_ALGO="Tree"), request(AR), [1 << 20])
    assert algo_proto(trials.sizes[0].picked).startswith("Tree/")
    assert any(line.text.endswith("the table decides among the rest") for line in trials.log)


def test_ties_are_the_releases_own(tmp_path: Path) -> None:
    path = tmp_path / "t"
    same = "latency-us=0.5 bandwidth-gbs=9000"
    path.write_text(f"nccl-tuner-table 1\ncost allreduce -> tree/ll {same}\ncost allreduce -> ring/ll {same}\n")
    picks = [
        algo_proto(trial.run(path, selection(name), request(AR), [8]).sizes[0].picked) for name in ("2.28.9", "2.32.3")
    ]
    assert picks == ["Tree/LL", "Ring/LL"], "equal times: the first, and from 2.31 on the last"


def test_nvidias_csv(tmp_path: Path) -> None:
    path = tmp_path / "nccl_tuner.conf"
    path.write_text("allreduce,0,1048576,ring,simple,-1,-1,-1\n")
    (each,) = trial.run(path, selection("2.28.9"), request(AR), [8]).sizes
    assert (algo_proto(each.picked), each.decision) == ("Ring/Simple", 1)


def test_the_row_of_nvidias_csv_that_decides_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nccl_tuner.conf"
    path.write_text("allreduce,0,1048576,nvls_tree,simple,-1,-1,-1\nallreduce,0,1048576,ring,simple,-1,-1,-1\n")
    (each,) = trial.run(path, selection("2.28.9", nodes=1), request(AR), [8]).sizes
    assert (algo_proto(each.picked), each.decision, each.unavailable) == ("Ring/Simple", 2, None)
    path.write_text("allreduce,0,1048576,nvls_tree,simple,-1,-1,-1\nallreduce,0,1048576,pat,simple,-1,-1,-1\n")
    (each,) = trial.run(path, selection("2.28.9", nodes=1), request(AR), [8]).sizes
    assert (each.picked, each.decision, each.unavailable) == (each.own, None, 1)


@pytest.mark.parametrize("content", [None, "nonsense\n", "nccl-tuner-table 1\nallreduce -> ring/ll ring/ll\n"])
def test_a_table_that_the_plugin_refuses(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "bad"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadTable, match=f"^{path}") as error:
        trial.run(path, selection("2.28.9"), request(AR), [8])
    assert "returned" not in str(error.value)


def test_a_release_without_plugins(table: Path) -> None:
    with pytest.raises(BadInput, match=r"2\.18\.3 has no tuner plugins"):
        trial.run(table, selection("2.18.3"), request(AR), [8])


def test_the_command(table: Path, tmp_path: Path) -> None:
    scenario = ["--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.21.5", "--gpus-per-node", "2", "--bytes", "1M"]
    plain = run("plugin", "dry-run", str(table), "allreduce", *scenario).stdout
    assert "Ring/Simple" in plain
    assert "INFO TUNER/nccl-tuner: table" in plain
    unchecked = ("--env", "NCCL_TUNER_UNCHECKED=1")
    asked = run("plugin", "dry-run", str(table), "allreduce", *scenario, *unchecked, "--json").stdout
    (size,) = json.loads(asked)["sizes"]
    assert (size["bytes"], size["decision_line"], size["table"]["algorithm"]) == (1 << 20, 2, Algorithm.Ring.name)
    assert (size["table"]["protocol"], size["nccl"]["protocol"]) == ("Simple", "LL128")
    bad = tmp_path / "bad"
    bad.write_text("nccl-tuner-table 1\nallreduce -> ring/xx\n")
    refused = run("plugin", "dry-run", str(bad), "allreduce", *scenario, code=2)
    assert refused.stderr.startswith(f"nccl-tuner: {bad}:2: unknown protocol 'xx'")


def test_a_group_is_bound_by_operation(tmp_path: Path) -> None:
    path = tmp_path / "a.table"
    path.write_text("nccl-tuner-table 1\nallreduce -> ring/simple channels=2\n")
    command = f"plugin dry-run {path} allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 512K".split()
    answer = json.loads(run(*command, "--grouped", "4", "--json").stdout)
    assert answer["sizes"][0]["table"]["channels"] == 2
    assert answer["groups"] == [{"bytes": 512 << 10, "calls": 4, "nccl": [16], "table": [8]}]
    assert "groups" not in json.loads(run(*command, "--json").stdout)
    group = ["pick", "allreduce:512K*4", *command[4:10], "--json"]
    assert json.loads(run(*group, "--tuner", f"table:{path}").stdout)["kernels"][0]["channels"] == 8
    assert json.loads(run(*group).stdout)["kernels"][0]["channels"] == 16


@pytest.fixture
def of_other_release(tmp_path: Path) -> Path:
    path = tmp_path / "other.table"
    path.write_text("nccl-tuner-table 1\n# nccl: 2.29.2\nallreduce bytes=4M -> ring/ll128\n")
    return path


def test_a_table_for_another_release_is_ignored_as_by_the_plugin(of_other_release: Path) -> None:
    words = ("plugin", "dry-run", str(of_other_release), "allreduce", "--machine", "dgx-h100", "--bytes", "4M")
    first = " ".join(run(*words, "--nccl", "2.28.9").stdout.split())
    assert first.startswith(
        f"{of_other_release} is for NCCL 2.29.2, and this is 2.28.9: the plugin ignores the whole table"
    )
    (ignored,) = json.loads(run(*words, "--nccl", "2.28.9", "--json").stdout)["sizes"]
    (used,) = json.loads(run(*words, "--nccl", "2.29.2", "--json").stdout)["sizes"]
    assert ignored["table"] == ignored["nccl"]
    assert ignored["decision_line"] is None
    assert used["table"] != used["nccl"]
    assert used["decision_line"] == 3
    with pytest.raises(BadTable, match="ignores the whole table"):
        trial.run(of_other_release, selection("2.28.9"), request(AR), [4 << 20], {"NCCL_TUNER_STRICT": "1"})


def test_try_says_in_a_line_that_a_table_is_for_another_release(of_other_release: Path) -> None:
    words = ("plugin", "lint", "--libnccl", str(of_other_release), "--machine", "dgx-h100", "--nccl", "2.28.9")
    said = " ".join(run(*words, code=2).stderr.split())
    assert said == (
        f"nccl-tuner: {of_other_release} is for NCCL 2.29.2, and this is 2.28.9: the plugin ignores the whole table"
    )


def test_lint_takes_the_release_that_a_table_names(of_other_release: Path) -> None:
    words = ("plugin", "lint", str(of_other_release), "--machine", "dgx-h100")
    assert "the table is for NCCL" not in run(*words).stdout
    assert "the table is for NCCL 2.29.2, not for 2.28.9" in run(*words, "--nccl", "2.28.9", code=1).stdout


def test_headings_say_that_a_table_is_ignored(of_other_release: Path) -> None:
    words = ("--machine", "dgx-h100", "--nodes", "2", "--nccl")
    pick = ("pick", "allreduce", "--bytes", "4M", "--tuner", f"table:{of_other_release}", *words)
    says = "which is IGNORED, as it is for NCCL 2.29.2"
    out, _, _ = run(*pick, "2.28.9").stdout.partition("pick")
    assert says in " ".join(out.split())
    assert says not in " ".join(run(*pick, "2.29.2").stdout.split())
    budget = ("budget", "docs/examples/step.csv", "--table", str(of_other_release), "--time", "nccl", *words)
    assert "IGNORED by the plugin, as it is for NCCL 2.29.2" in " ".join(run(*budget, "2.28.9").stdout.split())
    assert "IGNORED" not in run(*budget, "2.29.2").stdout


def test_a_group_says_that_its_table_is_ignored(of_other_release: Path) -> None:
    words = ("pick", "allreduce:4M*2", "--machine", "dgx-h100", "--nccl", "2.28.9")
    given = ("--tuner", f"table:{of_other_release}")
    heading = " ".join(run(*words, *given).stdout.partition("kernel")[0].split())
    assert "which is IGNORED" in heading
    ignored, own = (json.loads(run(*each, "--json").stdout) for each in ((*words, *given), words))
    assert ignored["kernels"] == own["kernels"]
