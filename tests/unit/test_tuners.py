"""The tuner of a communicator: which one it is, what it changes, and what of it is refused."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tuner import communicator
from tuner.answers import picks as pick_answers
from tuner.answers.tuners import notes, word_of
from tuner.api import Communicator
from tuner.base import tables
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.numerics import NEVER_US, is_time
from tuner.emulator import ranges
from tuner.emulator.aws_ofi_nccl import release
from tuner.emulator.aws_ofi_nccl.tuner import AwsTuner
from tuner.emulator.compiled import CompiledSelection
from tuner.emulator.group import Operation, plan
from tuner.emulator.request import Request

ALL_REDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
SIZES = [1 << power for power in range(2, 35)]


def p5(nodes: int = 4, tuner: str | None = None, env: Mapping[str, str] | None = None, per: int = 8) -> Communicator:
    return communicator("p5.48xlarge", nodes=nodes, gpus_per_node=per, nccl="2.28.9", tuner=tuner, env=env or {})


def picked(of: Communicator) -> list[tuple[Algorithm, Protocol]]:
    return of.pick("allreduce", SIZES).algo_protos()


def test_instance_types_have_their_images_tuner_and_others_none() -> None:
    assert p5().scenario.title.endswith(f"tuner aws-ofi-nccl {release.of_images()}")
    assert picked(p5()) == picked(p5(tuner="aws-ofi-nccl")) != picked(p5(tuner="none"))
    assert communicator("dgx-h100", nodes=4).scenario.tuner is None
    assert communicator("p4d.24xlarge", nodes=4).scenario.tuner is None  # nothing for it


@pytest.mark.parametrize(
    "env", [{"OFI_NCCL_TUNER_TYPE": "Internal"}, {"OFI_NCCL_FORCE_NUM_RAILS": "4"}, {"NCCL_TUNER_PLUGIN": "none"}]
)
def test_variables_turn_it_off(env: Mapping[str, str]) -> None:
    assert picked(p5(env=env)) == picked(p5(tuner="none"))


def test_two_nodes_and_four_ranks_a_node_are_left_to_nccl() -> None:
    for of in (p5(nodes=2), p5(per=4)):
        assert of.scenario.tuner is not None
        assert of.scenario.tuner.why_not(of.selection.communicator)
        assert np.array_equal(of.pick("allreduce", SIZES).time_us, of.selection.alone.pick(ALL_REDUCE, SIZES).time_us)


def test_what_comes_with_it_is_applied_unless_it_is_set() -> None:
    of = communicator("p5en.48xlarge", nodes=4, nccl="2.28.9", env={"NCCL_BUFFSIZE": "4194304"})
    values = of.selection.communicator.environment.values
    assert (values["NCCL_NETDEVS_POLICY"], values["NCCL_BUFFSIZE"]) == ("max:1", "4194304")
    (note,) = notes(of.scenario)
    assert "NCCL_NETDEVS_POLICY=max:1" in note
    assert "NCCL_BUFFSIZE" not in note


def test_the_region_that_decides_is_named_and_what_nccl_would_take() -> None:
    word = word_of(p5(tuner="aws-ofi-nccl=1.21.1").selection, ALL_REDUCE, 256 << 20)
    assert word is not None
    assert (word.region, word.platform, word.alone.name) == (3, "p5", "NVLSTree/Simple")
    assert "region 3 of AllReduce on p5 with 8 ranks a node says Ring/LL128" in word.sentence


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gib", "Google"),
        ("aws-ofi-nccl=1.22.0", "its source has not been read here"),
        ("aws-ofi-nccl=1.22", "its source has not been read here"),
        ("aws-ofi-nccl=1.8.0", "valid: 1.9.0"),
        ("aws", "use aws-ofi-nccl, aws-ofi-nccl=VERSION"),
    ],
)
def test_other_tuners_are_refused_with_what_is_known(name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        p5(tuner=name)


def test_its_own_variables_need_it() -> None:
    with pytest.raises(BadInput, match="OFI_NCCL_TUNER_TYPE: only the tuner aws-ofi-nccl reads it"):
        communicator("dgx-h100", nodes=4, env={"OFI_NCCL_TUNER_TYPE": "Model"})
    with pytest.raises(BadInput, match="OFI_NCCL_PROTOCOL: not emulated"):
        p5(env={"OFI_NCCL_PROTOCOL": "SENDRECV"})


@pytest.mark.parametrize(("machine", "per"), [("p5.48xlarge", 8), ("p6-b200.48xlarge", 1), ("p6-b200.48xlarge", 8)])
@pytest.mark.parametrize("tuner", ["aws-ofi-nccl=1.18.0", "aws-ofi-nccl=1.21.1"])
def test_looked_up_picks_and_ranges_are_those_of_single_sizes(machine: str, per: int, tuner: str) -> None:
    of = communicator(machine, nodes=8, gpus_per_node=per, nccl="2.28.9", tuner=tuner)
    selection = CompiledSelection(of.selection.communicator)
    for collective in (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter):
        request = Request(collective, DataType.float32, Op.sum)
        table = selection.pick_table(request)
        assert table is not None
        drawn = np.exp2(np.random.default_rng(per).uniform(3, 37, 3000)).astype(np.uint64)
        starts = table.from_bytes[1:-1]
        sizes = np.concatenate([drawn, starts, starts - np.uint64(1), starts + np.uint64(1)])
        found, model = selection.pick(request, sizes), selection.model_pick(request, sizes)
        for name in ("algorithm", "protocol", "channels", "threads", "time_us"):
            assert np.array_equal(getattr(found, name), getattr(model, name)), (collective, name)
        edges = ranges.combinations(selection, request)
        at = np.searchsorted(edges.from_bytes, drawn[drawn >= edges.from_bytes[0]], side="right") - 1
        model = selection.model_pick(request, drawn[drawn >= edges.from_bytes[0]])
        assert np.array_equal(edges.algorithm[at], model.algorithm)
        assert np.array_equal(edges.protocol[at], model.protocol)


def test_a_cell_without_a_time_may_be_named_through_2_21() -> None:
    """2.21.5 ignores LL128 on Blackwell, and runs it where aws-ofi-nccl says so: its time is none, and no table's."""
    asked = communicator("aws-p6-b200", nodes=3, nccl="2.21.5", tuner="aws-ofi-nccl=1.21.1")
    ll128 = (Algorithm.Tree, Protocol.LL128)
    assert ll128 in asked.selection.excluded(ALL_REDUCE)
    picks, table = asked.pick("allreduce", SIZES), asked.compiled("allreduce")
    named = np.array([each == ll128 for each in picks.algo_protos()])
    assert named.any()
    assert (picks.time_us[named] == np.float32(NEVER_US)).all()
    assert (picks.time_us[~named] < 1e6).all()
    assert table is not None
    assert (table.look_up(picks.bytes)[0].channels[named] == 0).all()
    (answer,) = pick_answers.from_emulator(asked.scenario, ALL_REDUCE, [int(picks.bytes[named][0])])
    assert answer.runner_up is not None
    assert not is_time(answer.time_us)


def test_groups_ask_with_the_sum_of_their_calls() -> None:
    selection = p5(tuner="aws-ofi-nccl=1.21.1").selection
    calls = [Operation(ALL_REDUCE, 20 << 20)] * 2
    (choice,) = plan(selection, calls).choices
    assert choice.bytes == 40 << 20
    # A call alone gets Tree/LL128; 40 MiB are in the region beyond 36 MiB.
    assert selection.pick(ALL_REDUCE, 20 << 20).algo_protos() == [(Algorithm.Tree, Protocol.LL128)]
    assert (choice.algorithm, choice.protocol) == (Algorithm.Ring, Protocol.LL128)


def test_a_table_decides_as_a_tuner(tmp_path: Path) -> None:
    table = tmp_path / "own.table"
    table.write_text("nccl-tuner-table 1\nallreduce bytes=1M..2M -> tree/simple channels=4\n")
    of = communicator("dgx-h100", nodes=2, nccl="2.28.9", tuner=f"table:{table}")
    picks = of.pick("allreduce", [1 << 19, 1 << 20, 1 << 22])
    own = communicator("dgx-h100", nodes=2, nccl="2.28.9").pick("allreduce", [1 << 19, 1 << 22])
    assert picks.algo_protos()[1] == (Algorithm.Tree, Protocol.Simple)
    assert picks.channels[1] == 4
    assert [picks.algo_protos()[at] for at in (0, 2)] == own.algo_protos()


def test_releases_are_data_with_their_sources() -> None:
    names = release.names()
    assert names == sorted(names, key=lambda name: [int(part) for part in name.split(".")])
    text = (tables.folder() / "tuners" / "aws-ofi-nccl" / "releases.toml").read_text()
    assert text.count(".regions.") > 30
    for line in text.splitlines():
        if ".regions." in line:
            assert line.endswith(release.load(line.split('"')[1]).tag), line
        if line.startswith('    ["'):
            assert "# :" in line, line
    assert AwsTuner(release.load("1.21.1"), "p5.48xlarge", {}).title == "aws-ofi-nccl 1.21.1"


AWS_LINES = (
    "host:1:1 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.18.0",
    "host:1:1 [0] NCCL INFO TUNER/Plugin: Using nccl_ofi_tuner (v3)",
    "host:1:1 [0] NCCL INFO NET/OFI Region base Tuner is chosen for platform: p5.48xlarge",
)


def logged(folder: Path, *lines: str) -> Communicator:
    text = (Path(__file__).parents[2] / "docs" / "examples" / "nccl.log").read_text()
    file = folder / "nccl.log"
    file.write_text(text + "".join(f"{line}\n" for line in lines))
    return communicator(log=file, comp_cap=80)


def test_a_logs_tuner_decides(tmp_path: Path) -> None:
    said = logged(tmp_path, *AWS_LINES).scenario
    assert isinstance(said.tuner, AwsTuner)
    assert (said.tuner.title, said.tuner.product) == ("aws-ofi-nccl 1.18.0", "p5.48xlarge")
    assert said.from_log is not None
    assert said.from_log.notes[0] == "aws-ofi-nccl 1.18.0 chooses, as the log says"
    assert not any("NCCL's own choice" in note for note in said.from_log.notes)


def test_a_logs_tuner_of_no_known_release_is_said_to_decide(tmp_path: Path) -> None:
    for lines in (AWS_LINES[1:], (AWS_LINES[0].replace("1.18.0", "1.99.0"), *AWS_LINES[1:])):
        said = logged(tmp_path, *lines).scenario
        assert said.tuner is None
        assert said.from_log is not None
        assert said.from_log.notes[0].startswith("a tuner plugin chooses: nccl_ofi_tuner")


def test_another_tuner_of_a_log_keeps_that_of_the_images_away(tmp_path: Path) -> None:
    """The log is of an instance whose images load a tuner; a variable named another one, which then chose."""
    file = tmp_path / "nccl.log"
    lines = (
        "NCCL version 2.28.9+cuda12.9",
        "NET/OFI Running on p5.48xlarge platform, topology file /opt/topo.xml",
        "TUNER/Plugin: Plugin name set by env to libnccl-tuner-other.so",
        "TUNER/Plugin: Using other_tuner (v5)",
        "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
        "Using network AWS Libfabric",
        "16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer",
        "ncclCommInitRank comm 0x1 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 53000 commId 0x11 - Init COMPLETE",
    )
    file.write_text("".join(f"hosta:10:10 [0] NCCL INFO {line}\n" for line in lines))
    assert communicator("aws-p5-rdma", nodes=2).scenario.tuner is not None
    said = communicator(log=file).scenario
    assert said.tuner is None
    assert said.from_log is not None
    assert said.from_log.notes[0].startswith("a tuner plugin chooses: other_tuner")


@pytest.mark.parametrize("word", ["none", "NONE"])
@pytest.mark.parametrize(("nccl", "stays"), [("2.21.5", True), ("2.27.7", True), ("2.28.3", False), ("2.32.3", False)])
def test_none_turns_off_the_network_plugins_tuner_from_2_28_3_on(word: str, nccl: str, stays: bool) -> None:
    """Up to 2.27.7 it is a file that is missing, and the network plugin's tuner is asked (src/plugin/tuner.cc).

    The network plugin is there in any case, with the variables that it sets.
    """
    by_default, by_word, off = (
        communicator("p5.48xlarge", nodes=4, nccl=nccl, env=env)
        for env in ({}, {"NCCL_TUNER_PLUGIN": word}, {"OFI_NCCL_TUNER_TYPE": "Internal"})
    )
    assert picked(by_default) != picked(off)
    assert picked(by_word) == picked(by_default if stays else off)
    assert (
        by_word.pick("allreduce", SIZES).time_us == (by_default if stays else off).pick("allreduce", SIZES).time_us
    ).all()


@pytest.mark.parametrize(
    "plugin", ["/opt/amazon/ofi-nccl/lib/libnccl-ofi-tuner.so", "libnccl-net-ofi.so", "libnccl-tuner-ofi.so", "ofi"]
)
def test_naming_the_images_own_tuner_changes_nothing(plugin: str) -> None:
    assert picked(p5(env={"NCCL_TUNER_PLUGIN": plugin})) == picked(p5())


def test_a_library_of_others_takes_the_place_of_the_images_tuner() -> None:
    assert p5(env={"NCCL_TUNER_PLUGIN": "/opt/other/libother.so"}).scenario.tuner is None
