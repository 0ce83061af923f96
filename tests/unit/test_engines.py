"""Serving engines: who carries an AllReduce, by the tables, without the engines' packages."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.command_line import run
from tests.support.serving import COMPARED, Drawn
from tuner import communicator
from tuner.base import findings, tables
from tuner.base.errors import BadInput
from tuner.base.names import DataType
from tuner.engines import measured, nccl_environment, releases, rules, switches
from tuner.engines.carriers import Carriers
from tuner.engines.lookup import NumberTable
from tuner.engines.releases import EngineRelease
from tuner.engines.situation import Situation
from tuner.engines.sizes import Sizes, at_most, multiples, outside
from tuner.machine import gpus

ALL = releases.names()


def asked(release: EngineRelease, *arguments: str, **changed: Any) -> Situation:
    """One node of eight H100, but for what is changed; ``environment`` is the user's."""
    environment = changed.pop("environment", {})
    values = {
        "capability": 90,
        "ranks": 8,
        "nodes": 1,
        "dtype": DataType.bfloat16,
        "nvlink_everywhere": True,
        "peer_access": True,
        "multicast": True,
        **changed,
    }
    return Situation(**values, switches=switches.read(release, environment, arguments))


@pytest.mark.parametrize("name", ALL)
def test_every_condition_has_a_rule_and_every_rule_words(name: str) -> None:
    release = releases.load(name)
    for each in (*release.implementations, *release.experts, *release.gathers):
        assert {given["rule"] for given in each.conditions} <= set(rules.RULES)
    assert {given["rule"] for given in release.nccl_environment} <= set(nccl_environment.RULES)
    named = {**release.variables, **release.arguments}
    assert {each["kind"] for each in named.values()} <= set(switches.KINDS)
    assert {f"engines.{each}" for each in rules.RULES} <= set(findings.codes())


@pytest.mark.parametrize("name", ALL)
def test_the_last_implementation_is_nccl_without_conditions(name: str) -> None:
    release = releases.load(name)
    for last in (release.implementations[-1], *release.experts[-1:]):
        assert last.nccl
        assert not last.conditions
    assert {each.exchange for each in release.experts} <= {"", "allgather", "allreduce"}
    assert all(each.exchange == "allgather" for each in release.experts if each.nccl)


@pytest.mark.parametrize("name", COMPARED)
@given(seed=st.integers(0, 10**6))
def test_arrays_borders_and_single_sizes_agree(name: str, seed: int) -> None:
    """For each size the three ways of asking give one carrier, and it takes the size where those before it do not."""
    release = releases.load(name)
    drawn = Drawn(release, random.Random(seed), 8)
    carriers = Carriers(drawn.situation, release)
    try:
        drawn.with_borders(carriers)
    except BadInput:
        return
    everywhere = [random.Random(seed).randrange(1, 1 << power) for power in range(1, 62)]
    sizes = [*drawn.sizes_bytes, *(size + 1 for size in drawn.sizes_bytes), *everywhere, 1 << 62]
    by_array = carriers.numbers.among(np.array(sizes, np.uint64))
    assert (carriers.numbers.by_numpy(np.array(sizes, np.uint64)) == by_array).all()
    for nbytes, index in zip(sizes, by_array, strict=True):
        carrier = carriers.at(nbytes)
        assert carrier is release.implementations[index]
        assert carriers.failed_condition(carrier, nbytes) is None
        away = carriers.turned_away(nbytes)
        assert [each.name for each, _ in away] == [each.name for each in release.implementations[:index]]
        assert all(findings.words(because) for _, because in away)


def test_sizes_are_sets() -> None:
    small, even = at_most(100), multiples(2)
    both = small & even & outside(10, 20)
    assert [size for size in range(1, 110) if size in both] == [
        size for size in range(2, 101, 2) if size <= 10 or size >= 20
    ]
    rest = Sizes(but_not=(both,))
    assert [size in rest for size in range(1, 110)] == [size not in both for size in range(1, 110)]
    assert not at_most(0)


@given(
    borders=st.sets(st.integers(1, 70) | st.integers(1, 1 << 62), max_size=12),
    multiples=st.sets(st.sampled_from([1, 2, 4, 16, 128, 256])),
    seed=st.integers(0, 10**6),
)
def test_a_table_of_numbers_says_what_it_was_made_from(borders: set[int], multiples: set[int], seed: int) -> None:
    """C and NumPy, at each border and around it, for whatever number each range and each kind of size has."""

    def number(size: int) -> int:
        passed = sum(border <= size for border in borders)
        divides = max(each for each in {1, *multiples} if size % each == 0)
        return (passed * divides * (seed + 1) + passed) % 7

    table = NumberTable(number, borders, multiples)
    rng = random.Random(seed)
    around = {border + step for border in borders for step in (-256, -1, 0, 1, 2, 4, 16, 256)}
    drawn = {rng.randrange(1, 1 << rng.randrange(1, 63)) for _ in range(100)} | {
        1,
        1 << 62,
        (1 << 53) - 1,
        (1 << 54) - 1,
    }
    sizes = np.array([size for size in around | drawn if 1 <= size <= 1 << 62], np.uint64)
    wanted = [number(size) for size in sizes.tolist()]
    assert table.among(sizes).tolist() == wanted
    assert table.by_numpy(sizes).tolist() == wanted
    assert table.among(sizes[:0]).tolist() == []
    assert table.among(np.stack([sizes, sizes], axis=1)[:, 0]).tolist() == wanted  # not one after the other in memory


@pytest.mark.parametrize("wrong", [[0], [-1], [(1 << 62) + 1], [4, 0, 8], np.array([1 << 63], np.uint64)])
def test_what_is_no_size_is_refused_in_arrays(wrong: Any) -> None:
    group = communicator("dgx-h100", nccl="2.30.7").served_by("vllm")
    for asked in (group.carriers_of, group.pick):
        with pytest.raises(BadInput, match=r"valid are 1 to 2\*\*62"):
            asked(wrong, dtype="bfloat16")
    for no_size in ([1.5], [[1]], ["one"]):
        with pytest.raises(BadInput):
            group.carriers_of(no_size)


def test_picks_of_an_engine_stand_beside_who_carries() -> None:
    """NCCL's picks are those under the environment that the engine gives it: SGLang switches NVLS off."""
    sizes = [1 << 10, 16 << 20, 64 << 20]
    plain = communicator("dgx-h100", nccl="2.30.7")
    group = plain.served_by("sglang@0.5.23")
    found = group.pick(sizes, dtype="bfloat16")
    assert found.carried.tolist() == ["custom-v2", "custom-v2", "nccl"]
    given = communicator("dgx-h100", nccl="2.30.7", env={"NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0"})
    for name in ("algorithm", "protocol", "channels", "threads", "time_us"):
        wanted = getattr(given.pick("allreduce", sizes, dtype="bfloat16"), name)
        assert (getattr(found.nccl, name) == wanted).all()
    assert (found.nccl.algorithm != plain.pick("allreduce", sizes, dtype="bfloat16").algorithm).any()
    rows = found.rows()
    assert [row[:2] for row in rows] == list(zip(sizes, found.carried.tolist(), strict=True))
    assert list(found.columns()) == [
        "bytes",
        "carrier",
        *(f"nccl_{name}" for name in ("algorithm", "protocol", "channels", "threads", "time_us")),
    ]


def test_batch_invariance_leaves_everything_to_vllms_own_kernel_from_0_33_on() -> None:
    """vLLM 0.33.0 cuts a tensor into pieces; 0.30.0 gives NCCL what its own kernel has no room for."""
    large = 1 << 30
    for name, expected in (("vllm@0.30.0", "nccl"), ("vllm@0.33.0", "custom")):
        release = releases.load(name)
        situation = asked(release, environment={"VLLM_BATCH_INVARIANT": "1"})
        assert Carriers(situation, release).at(large).name == expected


def test_sglangs_torch_memory_takes_more_than_its_table_says() -> None:
    """SGLang 0.5.20 and 0.5.23: two variables that are on by default raise the limit, whatever the model."""
    release = releases.load("sglang@0.5.23")
    largest = (512 << 20) - 16
    given_by_default = asked(release, "enable-torch-symm-mem")
    assert Carriers(given_by_default, release).at(largest).name == "torch-symmetric"
    off = {"SGLANG_OPT_USE_INKLING_CUSTOM_AR": "0"}
    assert Carriers(asked(release, "enable-torch-symm-mem", environment=off), release).at(128 << 20).name == "nccl"


@pytest.mark.parametrize(
    ("engine", "environment", "arguments", "expected"),
    [
        ("sglang@0.5.22", {}, (), {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}),
        ("sglang", {}, (), {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_GRAPH_REGISTER": "0"}),
        (
            "sglang",
            {"NCCL_NVLS_ENABLE": "1", "NCCL_GRAPH_REGISTER": "1"},
            (),
            {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "1", "NCCL_GRAPH_REGISTER": "1"},
        ),
        (
            "sglang@0.5.22",
            {"NCCL_NVLS_ENABLE": "0"},
            ("enable-nccl-nvls",),
            {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "1"},
        ),
        ("sglang@0.5.20", {}, ("enable-symm-mem",), {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"}),
        ("vllm", {}, (), {}),
    ],
)
def test_the_engine_gives_nccl_its_environment(
    engine: str, environment: dict[str, str], arguments: tuple[str, ...], expected: dict[str, str]
) -> None:
    release = releases.load(engine)
    assert nccl_environment.given(asked(release, *arguments), release, environment) == expected


def test_deterministic_inference_pins_nccls_tree_and_channels() -> None:
    release = releases.load("sglang@0.5.23")
    environment = {"SGLANG_DETERMINISTIC_NCCL_NCHANNELS": "4"}
    situation = asked(release, "enable-deterministic-inference", environment=environment)
    made = nccl_environment.given(situation, release, {"NCCL_ALGO": "Ring"})
    assert made["NCCL_ALGO"] == "allreduce:tree"
    assert made["NCCL_MIN_NCHANNELS"] == made["NCCL_MAX_NCHANNELS"] == "4"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--engine vllm@0.1.0", f"vllm 0.1.0 has no table; the nearest: {releases.releases('vllm')[0]}"),
        ("--engine vllm@99.0.0", f"vllm 99.0.0 has no table; the nearest: {releases.releases('vllm')[-1]}"),
        ("--engine vlm", "did you mean vllm?"),
        ("--engine vllm --engine-arg disable-custom", "did you mean disable-custom-all-reduce?"),
        ("--engine vllm --env VLLM_ALLREDUCE_USE_SYMM=1", "did you mean VLLM_ALLREDUCE_USE_SYMM_MEM?"),
        ("--engine vllm --env VLLM_ALLREDUCE_USE_SYMM_MEM=on", "valid: 0 or 1"),
        (
            "--engine vllm --env VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1",
            "add --engine-arg max-cudagraph-capture-size=N and --hidden-size",
        ),
        ("--engine tgi --nodes 2", "tgi@3.3.6 serves a model on one node"),
        ("--engine sglang --engine-arg flashinfer-allreduce-fusion-backend=auto", "--hidden-size"),
        ("--eager", "--eager only apply with --engine"),
    ],
)
def test_what_an_engine_does_not_know_is_one_line(arguments: str, says: str) -> None:
    done = run("pick", "allreduce", "--machine", "dgx-h100", "--dtype", "bfloat16", *arguments.split(), code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_pick_names_the_carriers_in_order() -> None:
    group = ("--machine", "dgx-h100", "--engine", "vllm@0.33.0", "--dtype", "bfloat16")
    answer = json.loads(run("pick", "allreduce", *group, "--bytes", "128K,16M,128M", "--json").stdout)
    calls = answer["calls"]
    assert [call["carrier"] for call in calls] == ["flashinfer", "torch-symmetric", "nccl"]
    assert [("pick" in call) for call in calls] == [False, False, True]
    assert calls[2]["turned_away"][-1]["because"]["code"] == "engines.at-most-listed"
    assert calls[2]["turned_away"][-1]["because"]["facts"]["limit"] == 64 << 20


def test_flashinfer_over_pcie_takes_the_rows_of_the_widest_graph() -> None:
    """By FlashInfer's source: whole packs of 16 bytes, at least one for each rank, at most the captured rows."""
    group = ("--machine", "8xl40s@2xturin", "--gpus-per-node", "4", "--dtype", "bfloat16", "--hidden-size", "4096")
    asked = ("--env", "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1", "--engine-arg", "max-cudagraph-capture-size=512")
    sizes = "8K,4M,4104K"
    calls = json.loads(run("pick", "allreduce", "--engine", "vllm", *group, *asked, "--bytes", sizes, "--json").stdout)
    assert [each["carrier"] for each in calls["calls"]] == ["flashinfer-pcie-ipc", "flashinfer-pcie-ipc", "nccl"]
    assert calls["calls"][0]["source"] == "compared"
    release = releases.load("vllm")
    environment = {"VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": "1"}
    situation = asked_of(release, environment)
    carriers = Carriers(situation, release)
    assert [carriers.at(size).name for size in (48, 64, 72)] == ["nccl", "flashinfer-pcie-ipc", "nccl"]
    assert carriers.at(2 * 8192).name == "nccl"  # two rows, where the widest graph has one


def asked_of(release: EngineRelease, environment: dict[str, str]) -> Situation:
    """Four GPUs on PCIe, whose widest graph has one row of 4096."""
    return asked(
        release,
        "max-cudagraph-capture-size=1",
        environment=environment,
        ranks=4,
        hidden_size=4096,
        nvlink_everywhere=False,
        multicast=False,
        capability=89,
    )


def test_mscclpp_takes_up_to_8_mib_in_graphs() -> None:
    release = releases.load("sglang@0.5.23")
    situation = asked(release, "enable-mscclpp", ranks=4)
    carriers = Carriers(situation, release)
    assert [carriers.at(size).name for size in (1024, 8 << 20, 16 << 20)] == ["mscclpp", "mscclpp", "custom-v2"]
    assert Carriers(replace(situation, graph=False), release).at(1024).name == "custom-v2"
    on_two = Carriers(asked(release, "enable-mscclpp", ranks=16, nodes=2), release)
    assert [on_two.at(size).name for size in (1022, 1024, 2 << 20, 4 << 20)] == ["nccl", "mscclpp", "mscclpp", "nccl"]


@pytest.mark.parametrize(
    ("engine", "changed", "argument", "says"),
    [
        ("sglang", {"capability": 89}, "auto", "the engine ends with it on GPUs of compute capability 8.9"),
        ("sglang", {"nodes": 2}, "auto", "the engine ends with it on several nodes; valid: leave it out"),
        ("sglang", {"nodes": 2, "capability": 100}, "trtllm", "valid: auto, mnnvl"),
        ("sglang", {}, "cutedsl", "valid: auto, trtllm, mnnvl"),
    ],
)
def test_backends_with_which_sglang_ends(engine: str, changed: dict[str, Any], argument: str, says: str) -> None:
    release = releases.load(engine)
    given = asked(release, f"flashinfer-allreduce-fusion-backend={argument}", hidden_size=4096, **changed)
    with pytest.raises(BadInput, match=says):
        Carriers(given, release).at(4096)


def test_sglangs_flashinfer_by_backend_and_rows() -> None:
    """On Blackwell rows of whole packs, and what the memory has room for beyond is not sure; cutedsl has none."""
    release = releases.load("sglang@0.5.23")
    row = 4096 * 2

    def found(backend: str, hidden_size: int = 4096, **changed: Any) -> Carriers:
        argument = f"flashinfer-allreduce-fusion-backend={backend}"
        return Carriers(asked(release, argument, hidden_size=hidden_size, **changed), release)

    hopper, blackwell = found("auto"), found("auto", capability=100)
    assert [hopper.at(size).name for size in (2048 * row, 2049 * row)] == ["flashinfer", "nccl"]
    assert [hopper.compared(size) for size in (2048 * row, 2049 * row)] == [True, True]
    assert [blackwell.compared(size) for size in (2048 * row, 2049 * row)] == [True, False]
    two_rows = 2 * 4100 * 2
    assert found("auto", 4100, capability=100).at(two_rows).name == "custom-v2"
    assert found("auto", 4100).at(two_rows).name == "flashinfer"
    assert found("cutedsl", capability=100).at(row).name == "custom-v2"
    off = asked(release, "flashinfer-allreduce-fusion-backend=auto", "enforce-disable-flashinfer-allreduce-fusion")
    assert Carriers(off, release).at(row).name == "custom-v2"


def test_measured_times_stand_beside_as_measured_and_only_where_they_were() -> None:
    group = ("pick", "allreduce", "--machine", "dgx-h100", "--engine", "vllm@0.33.0", "--dtype", "bfloat16")
    calls = json.loads(run(*group, "--bytes", "16M,20M", "--json").stdout)["calls"]
    assert calls[0]["measured"] == {
        "engine": "vllm@0.24.0",
        "gpu": "H100",
        "ranks": 8,
        "bytes": 16 << 20,
        "time_us": 92.38,
        "source": "aiconfigurator 0.12.0",
    }
    assert "measured" not in calls[1]
    shown = " ".join(run(*group, "--bytes", "16M").stdout.split())
    assert "vllm@0.24.0 on 8 H100, in CUDA graphs: 16 MiB 92.38 us (aiconfigurator 0.12.0;" in shown
    for other in (("--eager",), ("--env", "VLLM_ALLREDUCE_USE_SYMM_MEM=0"), ("--gpus-per-node", "6")):
        assert "measured" not in json.loads(run(*group, *other, "--bytes", "16M", "--json").stdout)["calls"][0]


def test_what_was_measured_on_switches_is_not_said_of_pcie_gpus() -> None:
    assert communicator("dgx-h100", nccl="2.30.7").served_by("vllm").measured(DataType.bfloat16)
    on_pcie = communicator("8xh100-pcie@2xturin", nccl="2.30.7").served_by("vllm")
    assert on_pcie.scenario.gpu_names == ("H100",)
    assert not on_pcie.measured(DataType.bfloat16)


def test_each_measured_run_is_of_a_known_engine_and_gpu() -> None:
    table = tables.toml(tables.folder() / releases.FOLDER / measured.TABLE)
    for each in table["run"]:
        assert each["engine"] in releases.engines()
        assert each["gpu"] in {gpus.chip(name) for name in gpus.names()}
        assert len(each["time_us"]) == len(table["sizes_bytes"])
        assert min(each["time_us"]) > 0
        assert len(measured.measured(each["engine"], each["gpu"], each["ranks"], "bfloat16")) == len(each["time_us"])


def test_explain_says_what_turned_each_away_and_then_what_nccl_does() -> None:
    group = ("explain", "allreduce", "--machine", "dgx-h100", "--engine", "sglang@0.5.23", "--nccl", "2.30.7")
    carried = json.loads(run(*group, "--bytes", "16M", "--json").stdout)
    assert (carried["call"]["carrier"], carried["explanation"]) == ("custom-v2", None)
    left = json.loads(run(*group, "--bytes", "32M", "--json").stdout)
    because = {each["implementation"]: each["because"]["code"] for each in left["call"]["turned_away"]}
    assert because["custom-v2"] == "engines.sglang-custom-limit"
    assert left["explanation"]["pick"]["algorithm"] == "Ring"  # SGLang switches NVLS off
    shown = run(*group, "--bytes", "32M").stdout
    assert shown.index("its limit is 16 MiB here") < shown.index("how Ring/LL128 comes to its numbers")
    in_windows = run(*group, "--bytes", "32M", "--engine-arg", "enable-symm-mem").stdout
    assert "symmetric kernels that can run the call" in in_windows


def test_sequence_parallel_experts_split_the_rows_of_a_group() -> None:
    """vLLM, deepseek_v2.py: attention ends in a ReduceScatter and begins with an AllGather around split experts."""
    step = ("budget", "--serve", "--model", "deepseek-v3", "--machine", "dgx-h100", "--attention-dp", "--batch", "100")
    split = ("--engine", "vllm@0.33.0", "--job", "tp=8,ep=16", "--nccl", "2.30.7", "--json")
    calls = json.loads(run(*step, *split).stdout)["calls"]
    decode = {each["of"]: each for each in calls if each["phase"] == "decode"}
    row = 7168 * 2
    assert decode["embedding"]["bytes"] == 50 * row  # two groups
    assert (decode["attention output"]["calls"], decode["attention output"]["ranks"]) == (3, 8)  # the dense layers
    for name, collective in (("attention to parts", "ReduceScatter"), ("parts to attention", "AllGather")):
        found = decode[name]
        assert (found["collective"], found["bytes"], found["calls"], found["ranks"]) == (collective, 56 * row, 58, 8)
    assert (decode["tokens to experts"]["bytes"], decode["tokens to experts"]["ranks"]) == (100 * row, 16)
    for wrong, says in (
        (("--engine", "vllm", "--job", "tp=8,ep=8"), "ep=16, or more"),
        (("--engine", "tensorrt-llm", "--job", "tp=8,ep=16"), "is the number of all ranks: use tp=1, ep=16"),
        (
            ("--engine", "vllm", "--model", "llama-3-70b", "--job", "ep=8"),
            "llama-3-70b has no experts to split: leave out ep",
        ),
    ):
        assert says in run(*step, *wrong, code=2).stderr


EXPERTS = (
    "budget",
    "--serve",
    "--model",
    "deepseek-v3",
    "--attention-dp",
    "--job",
    "ep=8",
    "--nccl",
    "2.30.7",
    "--json",
)


def of_experts(machine: str, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The calls that bring 64 sequences, and a chunk of 8192 tokens, to experts and back: by phase and direction."""
    calls = json.loads(run(*EXPERTS, "--machine", machine, *arguments).stdout)["calls"]
    return {(each["phase"], each["of"].split()[1]): each for each in calls if each["of"].endswith("experts")}


@pytest.mark.parametrize(
    ("engine", "arguments", "decode", "prefill"),
    [
        ("vllm@0.33.0", (), ("AllGather", "nccl"), ("AllGather", "nccl")),
        ("vllm@0.33.0", ("--engine-arg", "all2all-backend=naive"), ("AllGather", "nccl"), ("AllGather", "nccl")),
        (
            "vllm@0.30.0",
            ("--engine-arg", "all2all-backend=deepep_low_latency"),
            ("AllToAll", "deepep-low-latency"),
            ("AllToAll", "deepep-low-latency"),
        ),
        ("sglang@0.5.23", (), ("AllReduce", "custom-v2"), ("AllReduce", "nccl")),
        ("sglang@0.5.23", ("--draft-tokens", "1"), ("AllGather", "nccl"), ("AllReduce", "nccl")),
        ("sglang@0.5.23", ("--engine-arg", "disable-custom-all-reduce"), ("AllGather", "nccl"), ("AllReduce", "nccl")),
        ("sglang@0.5.20", (), ("AllGather", "nccl"), ("AllReduce", "nccl")),
        ("sglang@0.5.20", ("--engine-arg", "moe-a2a-backend=pplx"), ("AllToAll", "pplx"), ("AllToAll", "pplx")),
        ("tensorrt-llm", (), ("AllToAll", "nvlink-one-sided"), ("AllToAll", "nvlink-one-sided")),
        (
            "tensorrt-llm",
            ("--env", "TRTLLM_FORCE_COMM_METHOD=ALLGATHER"),
            ("AllGather", "nccl"),
            ("AllGather", "nccl"),
        ),
    ],
)
def test_who_brings_tokens_to_experts(
    engine: str, arguments: tuple[str, ...], decode: tuple[str, str], prefill: tuple[str, str]
) -> None:
    found = of_experts("dgx-h200", "--engine", engine, *arguments)
    for phase, wanted in (("decode", decode), ("prefill", prefill)):
        to = found[phase, "to"]
        assert (to["collective"], to["carrier"]) == wanted
        grouped = found[phase, "from"]["in_group"] > 1
        assert found[phase, "from"]["carrier"] == ("nccl" if grouped else to["carrier"])
        has_time = to["carrier"] == "nccl"
        assert (to["time_us"] is not None, "pick" in to) == (has_time, has_time)
        assert to["source"] == "compared" if wanted[1] == "custom-v2" else True
    back = {"AllGather": "ReduceScatter"}
    if engine.startswith("sglang") and decode[0] != "AllToAll":  # each rank is root of a Reduce of its own rows
        back = {"AllGather": "Reduce", "AllReduce": "Reduce"}
        assert found["decode", "from"]["in_group"] == 8
    assert found["decode", "from"]["collective"] == back.get(decode[0], decode[0])


def test_bytes_of_tokens_that_go_to_experts() -> None:
    """A gather has the rows of all ranks; kernels of another library send a copy to each expert at most."""
    row, everywhere = 7168 * 2, of_experts("dgx-h200", "--engine", "vllm")
    assert everywhere["decode", "to"]["bytes"] == 64 * row
    deepep = of_experts("dgx-h200", "--engine", "vllm", "--engine-arg", "all2all-backend=deepep_high_throughput")
    assert deepep["decode", "to"]["bytes"] == 64 // 8 * 8 * row  # 8 sequences of a rank, 8 experts of a token
    assert deepep["prefill", "from"]["bytes"] == 8192 // 8 * 8 * row


def test_experts_without_nvlink_and_engines_that_say_nothing_of_them() -> None:
    assert of_experts("8xl40s@2xturin", "--engine", "tensorrt-llm")["decode", "to"]["carrier"] == "nccl"
    done = run(*EXPERTS, "--machine", "dgx-h200", "--engine", "lmdeploy", code=2)
    assert "how lmdeploy@0.18.0 brings tokens of data-parallel attention to experts is not known" in done.stderr
    wrong = run(*EXPERTS, "--machine", "dgx-h200", "--engine", "vllm", "--engine-arg", "all2all-backend=deep", code=2)
    assert "all2all-backend='deep': vllm@0.33.0 cannot read that; valid: allgather_reducescatter" in wrong.stderr


def test_variables_and_arguments_go_to_the_engine_that_has_them() -> None:
    machine = ("--machine", "dgx-b200", "--dtype", "bfloat16")
    foreign = ("--env", "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB=1024")
    refused = run("pick", "allreduce", "--engine", "vllm", *machine, *foreign, "--bytes", "1M", code=2)
    assert "is a variable of sglang, and this is vllm@0.33.0" in refused.stderr
    with pytest.raises(BadInput, match="is a variable of vllm, and this is sglang"):
        communicator("dgx-b200").served_by("sglang", environment={"VLLM_ANY": "1"})
    both = ("--engine", "vllm", "--engine", "sglang", *machine, "--json")
    own = (*foreign, "--engine-arg", "enable-torch-symm-mem")
    differences = json.loads(run("diff", "allreduce", *both, *own).stdout)["differences"]
    first = next(each for each in differences if each["sglang@0.5.23"]["carrier"] == "torch-symmetric")
    assert first["sglang@0.5.23"]["from_bytes"] == (4 << 20) + 16
    neither = run("diff", "allreduce", *both, "--engine-arg", "enable-nothing", code=2)
    assert "has no switch enable-nothing" in neither.stderr


def test_what_is_nccls_is_asked_without_the_engine_but_with_what_it_sets() -> None:
    done = run("pick", "allgather", "--engine", "sglang@0.5.20", "--machine", "dgx-h100", "--bytes", "1M", code=2)
    assert "leave out --engine, and add --env NCCL_CUMEM_ENABLE=0 --env NCCL_NVLS_ENABLE=0" in done.stderr


def test_a_step_has_its_own_launches_and_columns() -> None:
    asked = (
        "budget",
        "--serve",
        "--engine",
        "vllm",
        "--model",
        "llama-3-70b",
        "--job",
        "tp=8",
        "--machine",
        "dgx-h100",
    )
    done = run(*asked, "--eager", "--hidden-size", "4096", code=2)
    assert "--eager does not apply, as decoding steps" in done.stderr
    assert "--hidden-size does not apply, as the model says it; remove them" in done.stderr


ROW = 7168 * 2  # bytes of a token of deepseek-v3
STEP = ("budget", "--serve", "--model", "deepseek-v3", "--machine", "dgx-h200", "--nccl", "2.30.7", "--json")
Calls = dict[tuple[str, str], dict[str, Any]]


def of_step(*arguments: str) -> Calls:
    """The calls of a step by phase and name."""
    calls = json.loads(run(*STEP, *arguments).stdout)["calls"]
    return {(each["phase"], each["of"]): each for each in calls}


def shown(calls: Calls, phase: str) -> dict[str, tuple[str, int, int, int, str]]:
    """What a phase's calls are: collective, bytes, how many, ranks and carrier."""
    keys = ("collective", "bytes", "calls", "ranks", "carrier")
    return {of: tuple(each[key] for key in keys) for (when, of), each in calls.items() if when == phase}


GATHERED = ("--attention-dp", "--job", "tp=2,ep=8")


def test_sglangs_attention_groups_gather_padded_rows_and_scatter_the_sums() -> None:
    """Four groups of two: dp_attention.py, _dp_gather_via_all_gather and dp_reduce_scatter_tensor."""
    calls = of_step("--engine", "sglang@0.5.20", *GATHERED, "--batch", "70")
    own, rows = 18 * ROW, 4 * 18 * ROW  # 17.5 sequences of a group, padded to as many for both of its ranks
    found = shown(calls, "decode")
    assert found == {
        "embedding": ("AllReduce", own, 1, 2, "nccl"),  # the group has no custom AllReduce before 0.5.23
        "attention to parts": ("ReduceScatter", own, 3, 2, "nccl"),  # the dense layers', behind the experts'
        "tokens to experts": ("AllGather", rows, 58, 8, "nccl"),
        "tokens from experts": ("ReduceScatter", rows, 58, 8, "nccl"),
        "parts to attention": ("AllGather", own, 3, 2, "nccl"),
        "tokens to dense layers": ("AllGather", rows, 3, 8, "nccl"),
        "tokens from dense layers": ("ReduceScatter", rows, 3, 8, "nccl"),
        "tokens to logits": ("AllReduce", rows, 1, 8, "custom-v2"),
        "logits": ("AllGather", 72 * 129280 * 2, 1, 8, "multicast"),
    }


def test_sglangs_prefill_sums_a_buffer_with_the_rows_of_all_groups() -> None:
    """_dp_gather_via_all_reduce, which completes the attention's sum as well; only the rows of a chunk, unpadded."""
    found = shown(of_step("--engine", "sglang@0.5.23", *GATHERED, "--chunk", "8190"), "prefill")
    assert found == {
        "embedding": ("AllReduce", 2048 * ROW, 1, 2, "nccl"),
        "tokens to experts": ("AllReduce", 8190 * ROW, 58, 8, "nccl"),
        "tokens from experts": ("AllReduce", 8190 * ROW, 58, 8, "nccl"),
        "tokens to dense layers": ("AllReduce", 8190 * ROW, 3, 8, "nccl"),
        "tokens from dense layers": ("AllReduce", 8190 * ROW, 3, 8, "nccl"),
        "tokens to logits": ("AllReduce", 4 * ROW, 1, 8, "custom-v2"),
        "logits": ("AllGather", 4 * 129280 * 2, 1, 8, "multicast"),
    }


def test_sglangs_kernels_take_tokens_from_the_parts_of_a_group() -> None:
    """With DeepEP the layers with experts work on parts; moe-dense-tp-size=1 has the dense ones do so, too."""
    kernels = ("--engine", "sglang@0.5.23", *GATHERED, "--engine-arg", "moe-a2a-backend=deepep")
    found = shown(of_step(*kernels), "decode")
    assert found["attention to parts"][2] + found["tokens to dense layers"][2] == 3 + 3  # the dense ones' are the last
    assert found["tokens to experts"] == ("AllToAll", 8 * 8 * ROW, 58, 8, "deepep")
    local = shown(of_step(*kernels, "--engine-arg", "moe-dense-tp-size=1"), "decode")
    assert local["attention to parts"] == ("ReduceScatter", 16 * ROW, 61, 2, "nccl")
    assert "tokens to dense layers" not in local


def test_sglangs_logits_of_a_group_and_sums_of_deterministic_inference() -> None:
    group = ("--engine", "sglang@0.5.23", *GATHERED, "--engine-arg")
    own = shown(of_step(*group, "enable-dp-lm-head"), "decode")
    assert own["logits of a group"] == ("AllGather", 16 * 129280 * 2, 1, 2, "nccl")
    assert "tokens to logits" not in own
    same = shown(of_step(*group, "enable-deterministic-inference"), "decode")
    assert same["tokens to experts"][0] == "AllGather"
    assert same["tokens from experts"][0] == same["attention to parts"][0] == "AllReduce"
    before = shown(of_step("--engine", "sglang@0.5.20", *group[2:], "enable-deterministic-inference"), "decode")
    assert before["tokens from experts"][0] == "ReduceScatter"


def test_sglangs_windows_are_of_padded_rows_alone() -> None:
    """--enable-symm-mem: the pool has what is padded, and of the logits what is gathered."""
    calls = of_step("--engine", "sglang@0.5.20", *GATHERED, "--engine-arg", "enable-symm-mem", "--batch", "600")
    for of in ("embedding", "tokens to experts", "tokens from experts", "parts to attention", "attention to parts"):
        assert calls["decode", of]["pick"]["pick"]["bypass"].startswith("symmetric kernel"), of
    for of in ("embedding", "tokens to experts", "tokens from experts"):
        assert (calls["prefill", of]["title"], "bypass" in calls["prefill", of]["pick"]["pick"]) == ("NCCL", False)
    (logits,) = (calls["decode", "logits"]["pick"]["pick"],)  # of which NCCL has the receiving side in a window
    assert logits["bypass"] == "symmetric kernel AllGather_STMC"


@pytest.mark.parametrize(
    ("batch", "arguments", "carrier"),
    [
        ("128", (), "multicast"),
        ("129", (), "nccl"),
        ("129", ("--engine-arg", "max-running-requests=256"), "multicast"),
        ("64", ("--draft-tokens", "1"), "multicast"),
        ("65", ("--draft-tokens", "1"), "nccl"),
        ("65", ("--draft-tokens", "1", "--engine-arg", "max-running-requests=65"), "multicast"),
        ("8", ("--dtype", "float16"), "nccl"),
        ("8", ("--machine", "8xl40s@2xturin"), "nccl"),
        ("8", ("--job", "tp=16"), "nccl"),
        ("500", ("--engine-arg", "enable-mscclpp"), "mscclpp"),
    ],
)
def test_who_gathers_sglangs_logits(batch: str, arguments: tuple[str, ...], carrier: str) -> None:
    """MultimemAllGatherer: 128 rows, or as many as the requests that may run have."""
    calls = of_step("--engine", "sglang@0.5.23", "--job", "tp=8", "--batch", batch, *arguments)
    assert calls["decode", "logits"]["carrier"] == carrier


@pytest.mark.parametrize(("engine", "splits"), [("vllm@0.30.0", False), ("vllm@0.31.0", True)])
def test_vllms_groups_split_their_rows_with_some_kernels_alone(engine: str, splits: bool) -> None:
    group = ("--engine", engine, *GATHERED, "--engine-arg", "all2all-backend=deepep_v2")
    if splits:
        assert shown(of_step(*group), "decode")["attention to parts"][0] == "ReduceScatter"
        return
    done = run(*STEP, *group, code=2)
    assert "does not split a group's rows" in done.stderr
    assert "--job ep=8" in done.stderr
    assert of_step(*group, "--job", "ep=8")["decode", "tokens to experts"]["carrier"] == "deepep-v2"


def test_experts_of_tensorrt_llm_that_are_split_are_gathered() -> None:
    split = ("--engine", "tensorrt-llm", "--attention-dp", "--job", "ep=8", "--engine-arg")
    assert shown(of_step(*split, "moe-tensor-parallel-size=1"), "decode")["tokens to experts"][0] == "AllToAll"
    assert shown(of_step(*split, "moe-tensor-parallel-size=2"), "decode")["tokens to experts"][0] == "AllGather"


def test_lmdeploy_gathers_embeddings_in_windows_and_ends_as_it_ends() -> None:
    engine = ("--engine", "lmdeploy", "--job", "tp=8")
    calls = of_step(*engine)
    assert calls["decode", "embedding"]["collective"] == "AllGather"
    assert calls["decode", "embedding"]["pick"]["pick"]["bypass"] == "symmetric kernel AllGather_STMC"
    torch = (*engine, "--engine-arg", "backend=pytorch")
    assert of_step(*torch)["decode", "embedding"]["collective"] == "AllReduce"
    kernels = of_step(*engine, "--engine-arg", "communicator=native")
    assert {each["carrier"] for each in kernels.values()} == {"cuda-ipc"}
    own = ("--env", "LMDEPLOY_ENABLE_SYMM_MEM_ALLREDUCE=on")
    assert of_step(*torch, *own)["decode", "embedding"]["carrier"] == "torch-symmetric"
    assert of_step(*torch, *own, "--job", "tp=8,ep=8")["decode", "embedding"]["carrier"] == "nccl"
    lm_head = of_step(*torch, "--env", "LMDEPLOY_ENABLE_SYMM_MEM_LMHEAD=1")
    assert (lm_head["decode", "logits"]["carrier"], lm_head["prefill", "logits"]["carrier"]) == ("multicast", "nccl")
    several = run(*STEP, *engine, "--engine-arg", "communicator=cuda-ipc", "--job", "tp=16", code=2)
    assert "communicator=cuda-ipc: the engine ends with it on several nodes, and this is 2" in several.stderr
    both = run(*STEP, *torch, *own, "--env", "LMDEPLOY_ENABLE_FLASHINFER_ALLREDUCE=1", code=2)
    assert "the engine ends at its start with both " in both.stderr


@pytest.mark.parametrize(("graph", "buffers"), [("1", "graph"), ("0", "plain")])
def test_what_graphs_capture_is_registered_with_the_network_alone(graph: str, buffers: str) -> None:
    """One rank per node: NVLink's registrations refuse PyTorch's memory, the network's do not (coll_reg.cc)."""
    machine = ("--machine", "dgx-h100", "--gpus-per-node", "1", "--env", f"NCCL_GRAPH_REGISTER={graph}")
    calls = of_step("--engine", "vllm@0.33.0", "--job", "tp=2", "--batch", "4096", *machine)
    pick = ("pick", "allgather", *machine, "--nodes", "2", "--dtype", "bfloat16", "--nccl", "2.30.7", "--json")
    size = str(calls["decode", "logits"]["bytes"])
    found = {kind: json.loads(run(*pick, "--bytes", size, "--buffers", kind).stdout) for kind in ("graph", "plain")}
    channels = {kind: each["picks"][0]["pick"]["channels"] for kind, each in found.items()}
    assert channels["graph"] != channels["plain"] or graph == "0"
    assert calls["decode", "logits"]["pick"]["pick"]["channels"] == channels[buffers]


def test_rows_are_on_symmetric_windows_where_vllm_registers_them() -> None:
    on_windows = of_experts("dgx-h200", "--engine", "vllm", "--env", "VLLM_USE_NCCL_SYMM_MEM=1")
    assert on_windows["decode", "to"]["pick"]["pick"]["bypass"] == "symmetric kernel AllGather_STMC"
    invariant = ("--env", "VLLM_USE_NCCL_SYMM_MEM=1", "--env", "VLLM_BATCH_INVARIANT=1")
    plain = of_experts("dgx-h200", "--engine", "vllm", *invariant)
    assert plain["decode", "to"]["pick"]["pick"]["algorithm"] == "Ring"


def test_edges_and_diff_give_borders_to_the_byte() -> None:
    machine = ["--machine", "dgx-b200", "--dtype", "bfloat16", "--json"]
    ranges = json.loads(run("edges", "allreduce", "--engine", "vllm@0.30.0", *machine).stdout)["ranges"]
    assert [(each["carrier"], each["to_bytes"]) for each in ranges[:2]] == [
        ("flashinfer", 1 << 20),
        ("torch-symmetric", 128 << 20),
    ]
    both = ["--engine", "vllm@0.30.0", "--engine", "vllm@0.33.0"]
    (change,) = json.loads(run("diff", "allreduce", *both, *machine).stdout)["differences"]
    assert change["vllm@0.33.0"]["carrier"] == "flashinfer"
    assert (change["vllm@0.30.0"]["from_bytes"], change["vllm@0.30.0"]["to_bytes"]) == ((1 << 20) + 16, 128 << 20)


def test_trays_of_one_domain_are_nodes_of_the_engine() -> None:
    group = communicator("gb200-nvl72", trays=2, nccl="2.30.7").served_by("vllm@0.33.0")
    situation = group.situation(DataType.bfloat16)
    assert (situation.ranks, situation.nodes, situation.one_domain) == (8, 2, True)
    assert group.carriers_of([128 << 20, (128 << 20) + 16], dtype="bfloat16").tolist() == ["flashinfer", "nccl"]


def test_pcie_gpus_leave_more_than_two_ranks_to_nccl() -> None:
    group = communicator("8xl40s@2xturin", nccl="2.30.7").served_by("vllm@0.33.0")
    assert set(group.carriers_of([1024, 1 << 20, 1 << 28], dtype="bfloat16").tolist()) == {"nccl"}
