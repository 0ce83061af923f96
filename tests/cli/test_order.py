"""``nccl-tuner order``: orders by class, and yes, no or not claimed for the questions that people ask."""

import itertools
import json
from typing import Any

import pytest
from click.testing import CliRunner

from tuner import api
from tuner.answers.order import of_calls
from tuner.answers.same_bits import SameBitsQuery, of_orders
from tuner.cli import everything

NODE = ("--machine", "dgx-h100", "--nccl", "2.28.9")
BATCHES = ("--dtype", "bfloat16", "--row-bytes", "16K", "--rows", "1,7,64")


def ordered(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(everything, ["order", *words, "--json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def refused(*words: str) -> str:
    result = CliRunner().invoke(everything, ["order", *words])
    assert result.exit_code != 0
    return str(result.exception)


def test_a_ring_has_one_order_for_each_rank_it_ends_at() -> None:
    (call,) = ordered("allreduce", *NODE, "--env", "NCCL_ALGO=Ring", "--bytes", "64K")["calls"]
    assert (call["pick"], call["channels"], call["ranks"], call["elements"]) == ("Ring/LL", 2, 8, 16384)
    assert len(call["classes"]) == 8
    first = call["classes"][0]
    assert first["term"] == [1, 2, 3, 4, 5, 6, 7, 0]
    assert first["ranges"] == [[0, 1024], [8192, 9216]]
    assert sum(each["elements"] for each in call["classes"]) == call["elements"]


def test_batches_get_other_bits_until_one_tree_adds_all() -> None:
    same = ordered("allreduce", *NODE, *BATCHES)["same_bits"]
    assert same["answer"] == "no"
    assert same["because"].startswith("element 0 of 16384 bytes in NCCL 2.28.9 is 1 + 2 + 3 + 4 + 5 + 6 + 7 + 0, ")
    (setting,) = same["settings"]
    assert setting["variables"] == {"NCCL_ALGO": "allreduce:tree"}
    assert setting["others_fail"] == []
    with_it = ordered("allreduce", *NODE, *BATCHES, "--env", "NCCL_ALGO=allreduce:tree")
    assert with_it["same_bits"]["answer"] == "yes"
    assert [each["term"] for call in with_it["calls"] for each in call["classes"]] == 3 * [[6, 7, 5, 4, 3, 2, 1, 0]]


def test_a_ring_of_one_channel_and_one_protocol_is_no_fixed_order() -> None:
    """What torchtitan took for one before its pull request 2994."""
    pinned = ("NCCL_ALGO=Ring", "NCCL_PROTO=Simple", "NCCL_MIN_NCHANNELS=1", "NCCL_MAX_NCHANNELS=1")
    words = [word for each in pinned for word in ("--env", each)]
    assert ordered("allreduce", *NODE, *BATCHES, *words)["same_bits"]["answer"] == "no"


@pytest.mark.slow
@pytest.mark.parametrize("nccl", ["2.31.2", "2.32.3"])
def test_settings_keep_the_other_collectives(nccl: str) -> None:
    """With NCCL_PROTO, NCCL_ALGO=allreduce:tree takes them away from 2.31 on (vLLM's pull request 58179)."""
    nodes = ("--machine", "dgx-h100", "--nccl", nccl, "--nodes", "3")
    for setting in ordered("allreduce", *nodes, *BATCHES)["same_bits"]["settings"]:
        assert setting["others_fail"] == []


@pytest.mark.parametrize(
    ("words", "answer", "because"),
    [
        (("--nodes", "8", "--bytes", "25M", "--change", "nodes=6"), "no", "64 numbers are added in one and 48"),
        (("--bytes", "1G", "--change", "nccl=2.30.7"), "not claimed", "the switch adds (NVLink SHARP)"),
        (("--dtype", "int32", "--bytes", "64K,1G"), "yes", "integers: every order gives the same bits"),
        (("--op", "max", "--bytes", "64K,1G"), "yes", "max: every order gives the same number"),
        (
            ("--bytes", "64K", "--change", "nccl=2.27.7"),
            "yes",
            "each element is added in the same order in all of them",
        ),
        (
            ("--bytes", "64K,96K"),
            "yes",
            "each element is added in the same order in all of them",
        ),  # a channel each 32 KiB
        (("--bytes", "64K,100K"), "no", "element 1024 of 65536 bytes"),
        (("--gpus-per-node", "2", "--bytes", "8,64K,1M"), "yes", "every element is added as 0 + 1"),
        (
            ("--bytes", "64K,96K", "--buffers", "window"),
            "not claimed",
            "symmetric kernel AllReduce_RSxLDMC_AGxSTMC: the switch adds",
        ),
    ],
)
def test_what_people_ask(words: tuple[str, ...], answer: str, because: str) -> None:
    same = ordered("allreduce", *NODE, "--no-settings", *words)["same_bits"]
    assert same["answer"] == answer, same
    assert because in same["because"]


def test_windows_are_added_in_the_order_of_ranks_where_a_low_latency_kernel_runs() -> None:
    half = ("allreduce", *NODE, "--dtype", "float16", "--buffers", "window", "--row-bytes", "512", "--rows", "1,2")
    answer = ordered(*half)
    assert answer["same_bits"] == {
        "answer": "yes",
        "because": "every element is added as 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7",
    } | {"settings": []}
    assert {call["sums_in"] for call in answer["calls"]} == {"float32"}


def test_sums_that_are_kept_in_float32_have_other_bits() -> None:
    scenario = api.scenario("dgx-h100", nccl="2.28.9")
    window, plain = (api.request("allreduce", dtype="float16", buffers=buffers) for buffers in ("window", "plain"))
    calls = [*of_calls(scenario, window, [512]), *of_calls(scenario, plain, [512])]
    same = of_orders(SameBitsQuery(plain, (512,)), calls)
    assert same.answer == "no"
    assert same.because == "sums are rounded to float32 after each addition in one and to float16 in the other"


def test_reduce_ends_at_its_root_and_reduce_scatter_at_each_part() -> None:
    (reduced,) = ordered("reduce", *NODE, "--bytes", "1M", "--root", "3")["calls"]
    assert [each["term"] for each in reduced["classes"]] == [[4, 5, 6, 7, 0, 1, 2, 3]]
    (scattered,) = ordered("reducescatter", *NODE, "--bytes", "1M", "--env", "NCCL_ALGO=Ring")["calls"]
    assert [each["term"][-1] for each in scattered["classes"]] == [*range(6), 6, 7]
    assert {len(each["ranges"]) for each in scattered["classes"]} == {1}


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "machine"),
    [
        ("allreduce", ("--machine", "dgx-1v", "--env", "NCCL_ALGO=Tree")),
        ("allreduce", ("--machine", "dgx-h100", "--nodes", "3", "--env", "NCCL_ALGO=Tree")),
        ("allreduce", ("--machine", "dgx-h100", "--gpus-per-node", "2")),
        ("allreduce", ("--machine", "dgx-a100")),
        ("reducescatter", ("--machine", "dgx-a100", "--nodes", "2")),
        ("reduce", ("--machine", "dgx-a100", "--nodes", "2", "--root", "5")),
    ],
)
@pytest.mark.parametrize("nccl", ["2.19.3", "2.28.9"])
def test_in_ranges_of_one_order_every_size_has_it(collective: str, machine: tuple[str, ...], nccl: str) -> None:
    words = (collective, *machine, "--nccl", nccl)
    result = CliRunner().invoke(everything, ["order", *words, "--range", "1K..64M", "--json"])
    assert result.exit_code == 0, result.output
    ranges = json.loads(result.stdout)["ranges"]
    ends = [(each["from_bytes"], each["to_bytes"]) for each in ranges]
    assert (ends[0][0], ends[-1][1]) == (1 << 10, 64 << 20)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    for each in ranges:
        sizes = {size // 64 * 64 for size in range(each["from_bytes"] + 63, each["to_bytes"] + 1, 1 << 21)}
        if not sizes:
            continue
        calls = ordered(*words, "--no-settings", "--bytes", ",".join(map(str, sorted(sizes))))["calls"]
        if each["order"] == "the same":
            for call in calls:
                assert [one["term"] for one in sorted(call["classes"], key=lambda one: one["ranges"][0])] == each[
                    "terms"
                ]
                assert {len(one["ranges"]) for one in call["classes"]} == {1}
        else:
            assert each["order"] == "by size"
            assert any(len(call["classes"]) > len(each["terms"]) for call in calls)


def test_what_cannot_be_asked_says_so() -> None:
    assert "AllGather adds no numbers" in refused("allgather", *NODE)
    assert "--rows counts rows of --row-bytes" in refused("allreduce", *NODE, "--rows", "1,7")
    assert "--root 8 is no rank here: valid are 0 to 7" in refused("reduce", *NODE, "--root", "8")
    assert "Ring/LL128 and Tree/LL128" in refused(
        "allreduce", "--node", "dgx-h100", "--node", "dgx-1v:4", "--nccl", "2.18.3", "--bytes", "1M"
    )
    assert "--range shows single calls on one communicator" in refused(
        "allreduce", *NODE, "--range", "8..1K", "--bytes", "8"
    )
    assert "valid: FROM..TO" in refused("allreduce", *NODE, "--range", "8")
    assert "expected multiples of 4" in refused("allreduce", *NODE, "--bytes", "10")


@pytest.mark.parametrize(("nccl", "read"), [("2.18.1", True), ("2.30.7", True), ("2.31.2", False)])
def test_an_answer_says_whether_the_device_code_was_read(
    nccl: str, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.answers.order.LAST_READ", "2.30.7")  # as before 2.31.2 was read
    words = ("allreduce", "--machine", "dgx-h100", "--nccl", nccl, "--bytes", "8K")
    assert ordered(*words)["calls"][0]["device_code_read"] is read
    printed = CliRunner().invoke(everything, ["order", *words]).stdout
    assert (f"NCCL {nccl} is assumed to add in the same order" in printed) is not read


def test_the_table_shows_the_first_orders_of_many() -> None:
    words = [
        "order",
        "allreduce",
        "--machine",
        "dgx-h100",
        "--nodes",
        "9",
        "--nccl",
        "2.28.9",
        "--env",
        "NCCL_ALGO=Ring",
    ]
    result = CliRunner().invoke(everything, [*words, "--bytes", "64M"])
    assert result.exit_code == 0, result.output
    assert "in 560 more orders" in result.stdout
    assert "+ ... +" in result.stdout


def test_calls_of_a_group_share_channels() -> None:
    alone, group = (
        ordered("allreduce", *NODE, "--bytes", "64K,1M", "--no-settings", *more) for more in ((), ("--group",))
    )
    assert [call["bytes"] for call in group["calls"]] == [64 << 10, 1 << 20]
    assert [call["classes"] for call in alone["calls"]] != [call["classes"] for call in group["calls"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("allreduce", *BATCHES[:2], "--row-bytes", "3", "--rows", "2"), "--row-bytes 3: expected a multiple of 2"),
        (("allreduce", *BATCHES[:4], "--rows", "99999999999999999"), "--rows 99999999999999999: expected 1 to "),
        (("allreduce", "--range", "1..3"), "no size from 1 to 3 bytes: sizes are multiples of 4"),
        (("allreduce", "--root", "3"), "--root: AllReduce has no root; only reduce has one here"),
    ],
)
def test_what_cannot_be_asked_names_its_option(words: tuple[str, ...], said: str) -> None:
    assert said in refused(*words, *NODE)
