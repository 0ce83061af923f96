"""``pick --launch`` and ``group --launch`` of other ranks and roots; tests/live/test_launches.py compares them."""

import json

import pytest

from tests.support.command_line import run

ON = ("--machine", "dgx-h100", "--nodes", "2", "--gpus-per-node", "2", "--nccl", "2.28.9")
ON_WINDOWS = "allgather", "--machine", "dgx-h100", "--nccl", "2.30.7", "--bytes", "1K,1M", "--launch"
COPIED = *ON_WINDOWS, "--buffers", "window", "--env", "NCCL_CTA_POLICY=ZERO"
ON_WINDOW = "broadcast", "--machine", "dgx-h100", "--nccl", "2.30.7", "--bytes", "64M", "--buffers", "window"
RINGS = (
    "allgather",
    *ON[:4],
    "--bytes",
    "1G",
    "--buffers",
    "graph",
    "--env",
    "NCCL_ALGO=Ring",
    "--launch",
    "--nccl",
    "-",
)
GROUP = (
    *ON[:4],
    "--buffers",
    "graph",
    "--env",
    "NCCL_ALGO=allgather:ring;reducescatter:pat",
    "--launch",
    "--nccl",
    "2.32.3",
)
CALL = "reduce", *ON, "--bytes", "1M", "--launch"


def test_a_launch_is_of_a_rank_and_has_a_root() -> None:
    (answer,) = json.loads(run("pick", *CALL, "--rank", "3", "--root", "1", "--json").stdout)["picks"]
    launch = answer["launch"]
    assert launch["rank"] == 3
    assert {work["root"] for kernel in launch["kernels"] for work in kernel["works"]} == {1}
    assert {ring["ranks"][0] for ring in launch["channels"]["rings"]} == {3}
    assert {ring["nodes"][0] for ring in launch["node_rings"]} == {1}


def test_a_group_has_roots() -> None:
    answer = json.loads(run("pick", "reduce@3:1M,broadcast@-1:1M", *ON, "--launch", "--rank", "2", "--json").stdout)
    works = [work for kernel in answer["launch"]["kernels"] for work in kernel["works"]]
    assert {work["place"]: work["root"] for work in works} == {0: 3, 1: 1}


@pytest.mark.parametrize("rank", ["0", "3"])
def test_adapters_take_buffers_of_all_ranks_or_of_none(rank: str) -> None:
    """Eight GPUs have an adapter each; with two, rings leave the node over the other GPU (PXN)."""
    machine, registered = ("--machine", "dgx-h100", "--nccl", "2.28.9"), ("--buffers", "registered")
    ring = "--env", "NCCL_ALGO=Ring", "--env", "NCCL_PROTO=Simple"
    for gpus, takers in (("8", ["peers", "network"]), ("2", ["peers"])):
        nodes = "--nodes", "2", "--gpus-per-node", gpus, "--bytes", "1G"
        words = "pick", "allgather", *machine, *nodes, "--launch", *registered, *ring, "--rank", rank, "--json"
        (answer,) = json.loads(run(*words).stdout)["picks"]
        (work,) = answer["launch"]["kernels"][0]["works"]
        assert work["registered_for"] == takers


@pytest.mark.parametrize(("windows", "takers"), [("send", []), ("receive", ["peers"]), ("both", ["peers"])])
def test_rings_of_a_node_need_only_what_is_received_in_a_window(windows: str, takers: list[str]) -> None:
    (answer,) = json.loads(run("pick", *ON_WINDOW, "--windows", windows, "--launch", "--json").stdout)["picks"]
    (work,) = answer["launch"]["kernels"][0]["works"]
    assert work["registered_for"] == takers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pick", *CALL, "--rank", "4"), "rank 4 is not in the communicator: valid are 0 to 3"),
        (("pick", *CALL, "--root", "-1"), "root -1 is no rank of the communicator: valid are 0 to 3"),
        (("pick", "allgather", *CALL[1:], "--root", "1"), "AllGather has no root"),
        (("pick", *CALL[:-1], "--rank", "1"), "--rank only applies with --launch: add --launch, or remove it"),
        (
            ("pick", *COPIED),
            "copy engines execute AllGather of 1024 bytes, and no kernel is launched: use --buffers plain",
        ),
        (("pick", *COPIED, "--json"), "no kernel is launched: use --buffers plain"),
        (("pick", "allgather:1M*2", *COPIED[1:5], *COPIED[7:]), "these calls have no launch to show"),
        (
            ("pick", *ON_WINDOWS, "--buffers", "graph", "--rank", "8"),
            "rank 8 is not in the communicator: valid are 0 to 7",
        ),
        (
            ("pick", *CALL, "--nccl", "2.30.7", "--buffers", "graph", "--env", "NCCL_MNNVL_CROSS_CLIQUE=1"),
            "full launches with NCCL_MNNVL_CROSS_CLIQUE",
        ),
        (("pick", *RINGS[:-1], "2.32.3", "--env", "NCCL_RUNTIME_CONNECT=0"), "PAT connects several ranks per node"),
        (("pick", "allgather:64M,reducescatter:64M", *GROUP), "PAT connects several ranks per node"),
        (("pick", "reduce@4:1M", *ON, "--launch"), "root 4 is no rank of the communicator: valid are 0 to 3"),
        (("pick", "send@1:1M", *ON, "--launch"), "--launch only applies to collectives"),
        (
            ("pick", "broadcast@1:1M,broadcast@2:1M", *ON[:-1], "2.29.2", "--launch"),
            "turns broadcasts from 2 roots into one call",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_line(words: tuple[str, ...], said: str) -> None:
    assert said in run(*words, code=2).stderr


@pytest.mark.parametrize(
    ("nccl", "algorithm", "protocol", "variable", "value"),
    [
        ("2.18.1", "Tree", "LL", "NCCL_LL_BUFFSIZE", "0"),
        ("2.20.5", "Ring", "Simple", "NCCL_BUFFSIZE", "7"),
        ("2.28.9", "Ring", "Simple", "NCCL_BUFFSIZE", "64"),
        ("2.28.9", "Ring", "LL128", "NCCL_LL128_BUFFSIZE", "-1"),
        ("2.28.9", "NVLSTree", "Simple", "NCCL_NVLSTREE_MAX_CHUNKSIZE", "0"),
        ("2.28.9", "NVLS", "Simple", "NCCL_NVLS_CHUNKSIZE", "-5"),
    ],
)
def test_chunks_by_which_nccl_cannot_divide_are_refused(
    nccl: str, algorithm: str, protocol: str, variable: str, value: str
) -> None:
    nodes = "1" if algorithm == "NVLS" else "2"
    words = "pick", "allreduce", "--machine", "dgx-h100", "--nodes", nodes, "--bytes", "1M", "--nccl", nccl
    forced = f"NCCL_ALGO={algorithm}", f"NCCL_PROTO={protocol}", f"{variable}={value}"
    settings = [word for each in forced for word in ("--env", each)]
    if "BUFFSIZE" in variable:  # with these NCCL itself ends
        said = run(*words, *settings, "--launch", code=1).stderr
        assert f"leaves {algorithm}/{protocol} chunks of " in said
        assert f"valid: without {variable}\n" in said
        return
    said = run(*words, *settings, "--launch", code=2).stderr
    assert f"{algorithm}/{protocol}: chunks of " in said
    assert variable in said.partition("set a larger ")[2]
