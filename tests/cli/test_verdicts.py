"""The first line of an answer that has a verdict is the verdict."""

from pathlib import Path

import pytest

from tests.support.command_line import run

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ON = ("--machine", "dgx-h100")
ARMS = (str(EXAMPLES / "all_reduce.log"), str(EXAMPLES / "all_reduce-ring.log"))
VERDICTS = {
    "log --check": (
        ("log", "--check", str(EXAMPLES / "nccl.log"), "--comp-cap", "8.0"),
        0,
        "the same as the log: 142 of 142",
    ),
    "check run": (("check", str(EXAMPLES / "nsight.sqlite"), *ON, "--nodes", "2"), 0, "8 of 8 calls ran as"),
    "diagnose": (("diagnose", str(EXAMPLES / "node.xml")), 0, "nothing is wrong"),
    "diagnose a fault": (("diagnose", str(EXAMPLES / "guest.xml")), 1, "found: 4 wrong"),
    "verify": (("verify", *ARMS, *ON), 0, "regret: mean"),
    "decide": (("decide", *ARMS, *ON, "--no-gate", "--out", "/dev/null"), 0, "/dev/null: 2 rows"),
    "budget": (("budget", str(EXAMPLES / "step.csv"), *ON, "--nodes", "2"), 0, "2 x dgx-h100, 8 GPUs each, NCCL"),
    "log": (("log", str(EXAMPLES / "nccl.log")), 0, "log, as expected: no NVLS, because"),
    "diagnose what is unlike and what cannot be judged": (
        ("diagnose", str(EXAMPLES / "nccl.log"), ARMS[0]),
        3,
        "cannot be judged: the machine is not known",
    ),
    "accept": (("accept", ARMS[0], *ON), 1, "FAIL: 5 of 18 sizes fail"),
    "order": (("order", "allreduce", *ON, "--bytes", "1M", "--change", "nodes=2"), 0, "Same bits: no"),
    "scale over GPUs": (
        ("edges", "allreduce", *ON, "--over", "gpus-per-node", "--nccl", "2.28.9", "--bytes", "1M"),
        0,
        "one pick for every number of GPUs per node",
    ),
    "diff of messages": (
        ("diff", "alltoall", "nodes=8", *ON, "--nodes", "2", "--nccl", "2.28.9"),
        0,
        "messages go another way in 9 ranges of sizes",
    ),
    "preflight": (("preflight", "check", str(EXAMPLES / "preflight")), 0, "all ranks choose the same"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_comes_first(name: str) -> None:
    words, code, says = VERDICTS[name]
    assert says in run(*words, code=code).stdout.splitlines()[0]


def test_what_lint_finds_comes_after_its_sum(tmp_path: Path) -> None:
    table = tmp_path / "my.table"
    table.write_text("nccl-tuner-table 1\nallreduce bytes=..1K -> ring/ll\nallreduce bytes=..1K -> tree/ll\n")
    first, *found = run("plugin", "lint", str(table), code=1).stdout.splitlines()
    assert "2 rows (table), 1 warnings and errors" in first
    assert found
