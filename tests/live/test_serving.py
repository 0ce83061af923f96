"""Who carries an AllReduce: our tables against the engines' own functions, over drawn situations."""

from dataclasses import replace
from random import Random

import pytest

from tests.support.command_line import run
from tests.support.draws import Draws
from tests.support.serving import COMPARED, Drawn
from tuner.base.errors import BadInput, OracleUnavailable
from tuner.base.names import DataType
from tuner.engines import releases, switches
from tuner.engines.carriers import Carriers
from tuner.engines.releases import EngineRelease
from tuner.engines.situation import Situation
from tuner.oracle import serving

SITUATIONS = 400


def fetched(name: str) -> EngineRelease:
    """The release, whose package's files are in the cache: `python -m tests.scripts.fetch_engines` fetches them."""
    release = releases.load(name)
    if not serving.is_fetched(release):
        pytest.skip(f"{name} is not in the cache")
    return release


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_the_engine_takes_what_the_table_says(name: str, draws: Draws) -> None:
    """Every size of every situation: drawn ones, and those around each border to the byte.

    Not compared are sizes of which the answer rests on what is known by source alone, whoever carries them. At most a
    tenth of the situations have such a size.
    """
    release = fetched(name)
    random = draws.random(name)
    drawn = [Drawn(release, random, 8) for _ in range(SITUATIONS * draws.times)]
    expected = [expected_carriers(each, Carriers(each.situation, release)) for each in drawn]
    questions = [serving.question(each.situation, each.environment, each.arguments, each.sizes_bytes) for each in drawn]
    taken, by_source = set[str](), 0
    for each, wanted, answer in zip(drawn, expected, serving.ask(release, questions), strict=True):
        if wanted is None:
            assert isinstance(answer, str), each
            continue
        carriers = Carriers(each.situation, release)
        compared = [carriers.compared(size) for size in each.sizes_bytes]
        by_source += not all(compared)
        assert [a for a, yes in zip(answer, compared, strict=True) if yes] == [
            a for a, yes in zip(wanted, compared, strict=True) if yes
        ], each
        taken.update(answer)
    assert by_source <= len(drawn) / 10
    assert taken >= {each.name for each in release.implementations if each.compared}


def expected_carriers(drawn: Drawn, carriers: Carriers) -> list[str] | None:
    """Our answer for each size, the borders' too; None where the engine ends with these settings."""
    try:
        drawn.with_borders(carriers)
        return [carriers.at(nbytes).name for nbytes in drawn.sizes_bytes]
    except BadInput:
        return None


def test_a_check_of_what_is_known_by_source_alone_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched("vllm@0.33.0")
    monkeypatch.setattr(Carriers, "compared", lambda *_: False)
    done = run("check", "--engine", "vllm@0.33.0", "--machine", "dgx-h100", code=3)
    assert done.stdout.startswith("cannot be judged: every answer here rests on")


def test_flashinfer_over_pcie_is_what_vllms_class_says() -> None:
    """Its class is run with a stand-in for FlashInfer's workspace; the engine ends where that cannot be made."""
    fetched("vllm@0.33.0")
    group = ("check", "--engine", "vllm@0.33.0", "--machine", "8xl40s@2xturin", "--gpus-per-node", "4")
    over_pcie = ("--env", "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1", "--engine-arg", "max-cudagraph-capture-size=512")
    same = "choose the same implementation for all 400 calls"
    assert same in run(*group, *over_pcie, "--hidden-size", "4096").stdout
    asked = {"capability": 89, "ranks": 4, "nodes": 1, "dtype": DataType.bfloat16, "nvlink_everywhere": False}
    release, environment = releases.load("vllm@0.33.0"), {"VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": "1"}
    given = switches.read(release, environment, ["max-cudagraph-capture-size=512"])
    apart = Situation(**asked, peer_access=False, multicast=False, hidden_size=4096, switches=given)  # type: ignore[arg-type]
    (answer,) = serving.ask(
        release, [serving.question(apart, environment, ["max-cudagraph-capture-size=512"], [1 << 20])]
    )
    assert "do not map each other's memory" in answer
    with pytest.raises(BadInput, match="if GPUs cannot map each other's memory"):
        Carriers(apart, release).at(1 << 20)


@pytest.mark.parametrize("name", ["sglang@0.5.20", "sglang@0.5.23"])
def test_sizes_that_mscclpp_measures_or_rounds_up_are_compared_or_marked(name: str) -> None:
    """Of one release a table of ranks and nodes each; between powers of two the fastest algorithm decides in 0.5.23."""
    release = fetched(name)
    arguments = ["enable-mscclpp"]
    for ranks, nodes in ((8, 1), (16, 2), (32, 4)):
        given = switches.read(release, {}, arguments)
        asked = Situation(90, ranks, nodes, DataType.bfloat16, True, True, True, switches=given)
        carriers = Carriers(asked, release)
        sizes = [size for power in range(1, 25) for size in ((1 << power) - 2, 1 << power, (1 << power) + 2)]
        sizes = [size for size in sizes if size and carriers.compared(size)]
        (answer,) = serving.ask(release, [serving.question(asked, {}, arguments, sizes)])
        assert answer == [carriers.at(size).name for size in sizes]
        assert "mscclpp" in answer
    uncertain = Carriers(replace(asked, ranks=8, nodes=1), release)
    assert uncertain.compared(400_000) is (name == "sglang@0.5.20")


def test_what_ends_sglang_ends_its_own_functions() -> None:
    """SGLang 0.5.20 leaves MSCCL++'s communicator half made with 3 ranks, which the first capture of a graph meets."""
    release = fetched("sglang@0.5.20")
    given = switches.read(release, {}, ["enable-mscclpp"])
    asked = Situation(90, 3, 1, DataType.bfloat16, True, True, True, switches=given)
    (answer,) = serving.ask(release, [serving.question(asked, {}, ["enable-mscclpp"], [4096])])
    assert "has no attribute 'world_size'" in answer
    with pytest.raises(BadInput, match="3 ranks capture a CUDA graph; valid: 8, 16, 32"):
        Carriers(asked, release).at(4096)


def test_a_limit_of_one_element_less_is_noticed() -> None:
    release = fetched("vllm@0.33.0")
    given = switches.read(release, {}, [])
    asked = Situation(90, 8, 1, DataType.bfloat16, True, True, True, switches=given)
    largest = 64 << 20
    changed = replace(release, limits={**release.limits, "torch_symmetric": {"9.0": {"8": largest - 2}}})
    assert serving.ask(release, [serving.question(asked, {}, [], [largest])]) == [["torch-symmetric"]]
    assert Carriers(asked, release).at(largest).name == "torch-symmetric"
    assert Carriers(asked, changed).at(largest).name == "nccl"


def test_a_setting_with_which_the_engine_ends_is_said() -> None:
    release = fetched("vllm@0.33.0")
    environment = {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm"}
    given = switches.read(release, environment, [])
    asked = Situation(100, 8, 2, DataType.bfloat16, True, True, True, True, switches=given)
    (answer,) = serving.ask(release, [serving.question(asked, environment, [], [4096])])
    assert "not supported for multi-node" in answer
    with pytest.raises(BadInput, match="=trtllm on several nodes"):
        Carriers(asked, release).at(4096)


def test_an_engine_without_a_package_is_not_asked() -> None:
    with pytest.raises(OracleUnavailable, match="cannot be asked"):
        serving.fetch(replace(releases.load("vllm"), engine="other"))


def test_random_situations_differ() -> None:
    release = releases.load("sglang")
    made = {repr(Drawn(release, Random(seed), 1)) for seed in range(20)}
    assert len(made) == 20
