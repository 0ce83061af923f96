"""Eight tasks of a new user, as an agent solves them with the tools alone: which is called with what, and what it says.

The page docs/mcp.md has them with the calls and bytes that they take, which are held here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import nccl_tests_text
from tests.support.mcp_client import Client, Talk, http, lines, talk_over

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"


@dataclass(frozen=True)
class Task:
    """``solved`` says of the short answers whether they have what was wanted."""

    wants: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    solved: Callable[..., bool]


def codes(answer: Any) -> set[str]:
    return set(answer.get("codes", ()))


def findings(answer: Any) -> list[Any]:
    found: list[Any] = answer["answer"]["tables"][0]["findings"]
    return found


TASKS = (
    Task(
        "AllReduce of 4 MiB on 4 x p5.48xlarge, with AWS's tuner: what is picked, and why?",
        (("explain", {"collective": "allreduce", "bytes": "4M", "machine": "p5.48xlarge", "nodes": 4}),),
        lambda said: (
            (said["answer"]["pick"]["algorithm"], said["answer"]["pick"]["protocol"]) == ("Tree", "LL128")
            and any("aws-ofi-nccl" in note for note in said["notes"])
        ),
    ),
    Task(
        "My own topology on 16 nodes: what is picked?",
        (
            ("diagnose", {"files": ["node.xml"]}),
            ("pick", {"collective": "allreduce", "bytes": "1K,1M,1G", "topology": "node.xml", "nodes": 16}),
        ),
        lambda seen, said: (
            seen["answer"]["files"][0]["machine"] == "dgx-a100"
            and [each["pick"]["algorithm"] for each in said["answer"]["picks"]] == ["Tree", "Tree", "Ring"]
        ),
    ),
    Task(
        "From NCCL 2.26.2 to 2.30.7 on 32 x dgx-b200: what changes, and what gets slower?",
        (
            (
                "diff",
                {
                    "collectives": ["allreduce"],
                    "before": "2.26.2",
                    "after": "2.30.7",
                    "machine": "dgx-b200",
                    "nodes": 32,
                },
            ),
        ),
        lambda said: (
            len(said["answer"]["comparisons"][0]["changes"]) >= 3
            and max(each["ratio"] for each in said["answer"]["comparisons"][0]["changes"] if isinstance(each, dict))
            > 1.3
        ),
    ),
    Task(
        "nccl-tests says 320 GB/s on 2 x 8 H200 with 400 Gb/s adapters: is that good?",
        (("accept", {"results": ["h200.log"], "machine": "hgx-h200", "nodes": 2}),),
        lambda said: said["verdict"] == "no" and {"accept.fails", "accept.lowest"} <= codes(said),
    ),
    Task(
        "NVIDIA's example of a table: what of it does nothing?",
        (("check_table", {"files": ["nvidia.conf"], "machine": "dgx-h100", "nodes": 2, "nccl": "2.28.9"}),),
        lambda said: any("no NCCL runs Broadcast by tree/simple" in each["reason"] for each in findings(said)),
    ),
    Task(
        "Llama-3-70B on 64 hosts of GB200, tensor 8, pipeline 4: how long do collectives take?",
        (
            ("machines", {"name": "gb200-nvl72"}),
            (
                "budget",
                {"model": "llama-3-70b", "machine": "gb200-nvl72", "nodes": 4, "trays": 16, "job": "tp=8,pp=4"},
            ),
        ),
        lambda machine, said: (
            machine["answer"]["trays"] == 18
            and said["answer"]["job"] == "tp=8,dp=8,pp=4"
            and said["answer"]["totals"][0]["total_us"] > 0
        ),
    ),
    Task(
        "May CI move from 2.28.9 to 2.30.7: does any pick change?",
        (
            (
                "diff",
                {
                    "collectives": ["allreduce", "allgather"],
                    "before": "2.28.9",
                    "after": "2.30.7",
                    "machine": "dgx-h100",
                    "nodes": 2,
                },
            ),
        ),
        lambda said: said["answer"]["comparisons"][0]["changes"] == [],
    ),
    Task(
        "A pair of DGX Spark: what is picked?",
        (("pick", {"collective": "allreduce", "bytes": "1M,1G", "machine": "dgx-spark", "nodes": 2}),),
        lambda said: [each["pick"]["protocol"] for each in said["answer"]["picks"]] == ["LL128", "Simple"],
    ),
)


@pytest.fixture(params=[lines, http])
def talk(request: pytest.FixtureRequest, tmp_path: Path) -> Talk:
    pytest.importorskip("mcp")
    return talk_over(request.param, tmp_path)


@pytest.mark.slow
def test_the_tasks_are_solved_in_the_calls_and_bytes_that_the_page_says(talk: Talk, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    times_us = [(1 << power, 2**power * 1.875 / 320e3) for power in range(20, 34)]
    log = nccl_tests_text.write(allowed / "h200.log", times_us, nodes=2)
    log.write_text(log.read_text("utf-8").replace("NVIDIA H100", "NVIDIA H200"), "utf-8")
    rows = "allreduce,0,65536,tree,simple,2,1,-1,-1,1\nbroadcast,0,32768,tree,simple,-1,-1,-1\n"
    (allowed / "nvidia.conf").write_text(rows)
    listed = re.findall(r"^\| (.+\?) \| (.+?) \| (\d+) \| ([\d,]+) \|$", PAGE.read_text("utf-8"), re.M)
    assert [row[0] for row in listed] == [task.wants for task in TASKS]

    async def dialogue(client: Client) -> None:
        for task, (_, tools, calls, most) in zip(TASKS, listed, strict=True):
            client.calls = client.bytes = 0
            answers = [await client.ask(tool, **given) for tool, given in task.calls]
            assert task.solved(*answers), task.wants
            assert ", ".join(f"`{tool}`" for tool, _ in task.calls) == tools
            assert client.calls == int(calls)
            assert client.bytes <= int(most.replace(",", "")), f"{task.wants}: {client.bytes} bytes"

    talk(dialogue)
