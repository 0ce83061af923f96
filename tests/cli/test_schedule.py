"""``export --format csv``, ``goal``, ``chakra``: the same messages in each form, with all bytes that must move."""

import csv
import io
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf import proto

from tests.support.command_line import COMMAND
from tuner.answers.exports import schedules
from tuner.cli import BROKEN_PIPE, everything

MOVES = {"allreduce": 14, "reducescatter": 7, "allgather": 7, "broadcast": 7, "reduce": 7}  # of nBytes, 8 ranks
NODE = ("--machine", "dgx-h100", "--nccl", "2.28.9", "--env", "NCCL_ALGO=Ring")
Message = tuple[str, int, int, int, int]  # send or receive, rank, peer, bytes, tag


def written(*words: str) -> str:
    result = CliRunner().invoke(everything, ["export", "--format", "csv", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str) -> str:
    result = CliRunner().invoke(everything, ["export", "--format", "csv", *words])
    assert result.exit_code != 0
    return str(result.exception)


def rows(*words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(written(*words))))


def of_csv(found: list[dict[str, str]], nbytes: str = "bytes") -> list[Message]:
    return [(row["operation"], int(row["rank"]), int(row["peer"]), int(row[nbytes]), int(row["tag"])) for row in found]


def of_goal(text: str) -> Iterator[Message]:
    rank = -1
    for line in text.splitlines():
        if begin := re.fullmatch(r"rank (\d+) \{", line):
            rank = int(begin[1])
        if found := re.fullmatch(r"l\d+: (send|recv) (\d+)b (?:to|from) (\d+) tag (\d+) cpu \d+", line):
            yield ("send" if found[1] == "send" else "receive", rank, int(found[3]), int(found[2]), int(found[4]))


def of_chakra(path: Path) -> list[Any]:
    """The nodes of a rank's file, read as Chakra's feeder reads them."""
    kinds, _ = schedules.load()
    with path.open("rb") as file:
        assert proto.parse_length_prefixed(kinds.GlobalMetadata, file).version
        nodes = []
        while (node := proto.parse_length_prefixed(kinds.Node, file)) is not None:
            nodes.append(node)
    return nodes


@pytest.mark.parametrize("collective", MOVES)
@pytest.mark.parametrize("size", ["8K", "3M"])
def test_all_that_is_sent_is_received_and_is_what_must_be_moved(collective: str, size: str) -> None:
    found = rows(collective, "--bytes", size, *NODE)
    sent = Counter(
        (row["rank"], row["peer"], row["tag"], row["first_byte"], row["bytes"])
        for row in found
        if row["operation"] == "send"
    )
    received = Counter(
        (row["peer"], row["rank"], row["tag"], row["first_byte"], row["bytes"])
        for row in found
        if row["operation"] == "receive"
    )
    assert sent == received
    assert set(sent.values()) == {1}
    nbytes = {"8K": 8 << 10, "3M": 3 << 20}[size]
    assert sum(int(bytes_) for *_, bytes_ in sent) == MOVES[collective] * nbytes
    adding = sum(int(row["bytes"]) for row in found if row["adds"] == "1")
    assert adding == (7 * nbytes if collective in ("allreduce", "reducescatter", "reduce") else 0)


@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
def test_the_forms_say_the_same(algorithm: str, tmp_path: Path) -> None:
    words = ("allreduce", "--bytes", "40K", "--machine", "dgx-h100", "--nodes", "2", "--env", f"NCCL_ALGO={algorithm}")
    found = rows(*words)
    assert list(of_goal(written(*words, "--format", "goal"))) == of_csv(found)
    assert list(of_goal(written(*words, "--format", "goal", "--wire"))) == of_csv(found, "wire_bytes")
    written(*words, "--format", "chakra", "-o", str(tmp_path / "traces"))
    nodes: list[Message] = []
    for rank in range(16):
        for node in of_chakra(tmp_path / f"traces.{rank}.et"):
            value = {each.name: getattr(each, each.WhichOneof("value")) for each in node.attr}
            assert value["is_cpu_op"] is False
            sends = node.type == 5
            assert value["comm_src" if sends else "comm_dst"] == rank
            peer = value["comm_dst" if sends else "comm_src"]
            nodes.append(("send" if sends else "receive", rank, peer, value["comm_size"], value["comm_tag"]))
            assert all(other < node.id for other in node.data_deps)
    assert nodes == of_csv(found)


def test_the_switch_is_a_peer() -> None:
    found = rows("allreduce", "--bytes", "1M", *NODE[:4], "--env", "NCCL_ALGO=NVLS")
    moved = Counter[tuple[str, str]]()
    for row in found:
        moved[row["operation"], row["peer"]] += int(row["bytes"])
    all_of_it = 8 << 20  # each rank's buffer to the switch, each sum from it, each result to it and to all
    assert moved == {
        ("send", "switch adds"): all_of_it,
        ("receive", "switch adds"): 1 << 20,
        ("send", "switch copies"): 1 << 20,
        ("receive", "switch copies"): all_of_it,
    }


CALLS = (
    ("allreduce", "--bytes", "1M", *NODE),
    ("alltoall", "--bytes", "4M", *NODE[:4]),
    ("send", "--bytes", "4M", "--rank", "2", "--peer", "7", *NODE[:4]),
    ("scatter", "--bytes", "4M", "--root", "5", "--machine", "dgx-h100", "--nccl", "2.21.5"),
)


@pytest.mark.parametrize("call", CALLS)
def test_goal_comes_to_its_end(call: tuple[str, ...]) -> None:
    """Run by hand: an operation begins when what it requires has ended; a receive ends when its message was sent."""
    text = written(*call, "--format", "goal")
    needs: dict[tuple[int, str], set[tuple[int, str]]] = {}
    sends: dict[tuple[int, int, int], tuple[int, str]] = {}
    receives: dict[tuple[int, str], tuple[int, int, int]] = {}
    rank = -1
    for line in text.splitlines():
        words = line.split()
        if line.startswith("rank"):
            rank = int(words[1])
        elif line.startswith("l") and words[1] in ("requires", "irequires"):
            needs[rank, words[0]].add((rank, words[2]))
        elif line.startswith("l"):
            own, peer, tag = (rank, words[0].rstrip(":")), int(words[4]), int(words[6])
            needs[own] = set()
            if words[1] == "send":
                sends[rank, peer, tag] = own
            else:
                receives[own] = (peer, rank, tag)
    for own, message in receives.items():
        needs[own].add(sends.pop(message))
    assert not sends
    done: set[tuple[int, str]] = set()
    while ready := [own for own, wanted in needs.items() if own not in done and wanted <= done]:
        done.update(ready)
    assert done == set(needs)


def test_what_has_no_schedule_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    by_switch = ("allreduce", "--bytes", "1M", *NODE[:4], "--env", "NCCL_ALGO=NVLS")
    for form in ("goal", "chakra"):
        assert "can only describe ranks, but the switch takes part" in refused(*by_switch, "--format", form, "-o", "x")
    assert "name them with --out" in refused("allreduce", "--bytes", "8K", *NODE, "--format", "chakra")
    assert "remove --wire" in refused("allreduce", "--bytes", "8K", *NODE, "--wire")
    assert "--root 8 is no rank here: valid are 0 to 7" in refused("broadcast", "--bytes", "8K", *NODE, "--root", "8")
    monkeypatch.setitem(__import__("sys").modules, "google.protobuf", None)
    without = refused("allreduce", "--bytes", "8K", *NODE, "--format", "chakra", "-o", str(tmp_path / "x"))
    assert "pip install 'nccl-tuner[chakra]'" in without


def test_what_is_larger_than_memory_is_written_as_it_is_made() -> None:
    """A hundred million rows, of which a reader takes one."""
    words = [str(COMMAND), "export", "--format", "csv", "allreduce", "--bytes", "1T", *NODE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("rank,channel,")
        process.stdout.close()
        assert process.wait(timeout=60) == BROKEN_PIPE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("allreduce", "--root", "3"), "--root: AllReduce has no root"),
        (("alltoall", "--root", "3"), "--root: AllToAll has no root"),
        (("gather", "--root", "8"), "--root 8 is no rank here: valid are 0 to 7"),
        (("send", "--rank", "8"), "--rank 8 is no rank here: valid are 0 to 7"),
        (("recv", "--peer", "-1"), "--peer -1 is no rank here: valid are 0 to 7"),
        (("gather", "--rank", "3"), "--rank and --peer only apply to send and recv"),
    ],
)
def test_ranks_that_do_not_belong_to_the_call_are_named(words: tuple[str, ...], said: str) -> None:
    assert said in refused(*words, "--bytes", "1M", *NODE[:4])
