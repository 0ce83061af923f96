"""What people bring: reduced inputs of ../shared/cases/reports, and small ones of our own that fail the same way."""

import json
import re
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.cases import report
from tests.support.command_line import run
from tuner import release
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.scenario.notes import harmful, is_unaligned

# --- releases and collectives of nccl-tests' outputs ---


@pytest.mark.parametrize("name", ["R1-version-line.log", "R1b-version-in-info.log"])
def test_a_result_is_judged_by_the_release_that_it_names(name: str) -> None:
    assert "NCCL 2.19.3\n" in run("accept", report(name), "--machine", "dgx-h100").stdout


def test_a_result_without_a_name_is_of_the_collective_that_its_columns_show() -> None:
    assert (
        run("accept", report("R9-no-name.log"), "--machine", "dgx-h100")
        .stdout.splitlines()[2]
        .startswith("AllReduce, ")
    )


# --- PAT of several GPUs per node, which NCCL takes only when told to ---

PAT = ("allgather", "--machine", "dgx-h100", "--bytes", "1M", "--nccl", "2.31.2")


def test_forced_pat_has_no_time() -> None:
    done = run("pick", *PAT, "--nodes", "8", "--env", "NCCL_ALGO=PAT")
    assert "PAT/Simple         16       640   never" in done.stdout
    assert "only picks it if it is forced" in done.stdout
    (one,) = json.loads(run("pick", *PAT, "--nodes", "8", "--env", "NCCL_ALGO=PAT", "--json").stdout)["picks"]
    assert one["pick"]["time_us"] > 1e38


def test_forced_pat_in_other_commands() -> None:
    assert "not compared" in run("diff", *PAT, "--nodes", "8", "NCCL_ALGO=PAT").stdout
    assert "never" in run("edges", "--over", "nodes", *PAT, "--env", "NCCL_ALGO=PAT").stdout
    row = next(line for line in run("explain", *PAT, "--nodes", "8").stdout.splitlines() if "PAT/Simple" in line)
    assert "never" in row
    assert row.rstrip().endswith("only if forced")
    assert len(row) < 120


@pytest.mark.live
@pytest.mark.skipif(release.names()[-1] not in HERE, reason="libnccl is absent")
def test_libnccl_runs_forced_pat() -> None:
    asked = (*PAT[:-1], release.names()[-1], "--nodes", "2", "--env", "NCCL_ALGO=PAT")
    assert "PAT/Simple         16       640   never" in run("pick", "--libnccl", *asked).stdout


# --- settings that harm ---

SEND = ("pick", "send", "--machine", "dgx-h100", "--nodes", "2", "--gpus-per-node", "1", "--nccl", "2.31.2")


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"NCCL_CHUNK_SIZE": "1048576"}, "above the 131072 bytes of a step"),
        ({"NCCL_CHUNK_SIZE": "131072"}, None),
        ({"NCCL_CHUNK_SIZE": "262144", "NCCL_P2P_NET_CHUNKSIZE": "262144"}, None),
        ({"NCCL_CHUNK_SIZE": "262144", "NCCL_P2P_NET_CHUNKSIZE": "262144", "NCCL_BUFFSIZE": "1048576"}, "the 131072"),
        ({"NCCL_IB_SPLIT_DATA_ON_QPS": "1"}, "cut over all queue pairs"),
        ({"NCCL_IB_SPLIT_DATA_ON_QPS": "0"}, None),
        ({"NCCL_DMABUF_ENABLE": "0"}, "no GPUDirect RDMA"),
        ({"NCCL_LL128_C2C": "1"}, "may destroy data"),
        ({"NCCL_LAUNCH_MODE": "GROUP"}, "may cost speed"),
        ({"NCCL_PROTO": "LL128"}, None),  # whether it is off there is not known
    ],
)
def test_what_harms_is_said_with_its_source(variables: dict[str, str], says: str | None) -> None:
    lines = harmful(variables, 2)
    assert len(lines) == (says is not None)
    if says is not None:
        assert says in lines[0]
        assert re.search(r"; source: \w", lines[0])


def test_a_chunk_beyond_a_step_is_said() -> None:
    done = run(*SEND, "--bytes", "1G", "--peer", "1", "--env", "NCCL_CHUNK_SIZE=1048576")
    assert "NCCL_CHUNK_SIZE=1048576 may destroy data" in done.stderr


@pytest.mark.parametrize(
    ("machine", "proto", "harms"),
    [
        ("pcie-l40s", "LL128", True),
        ("pcie-l40s", "LL,LL128", True),
        ("pcie-l40s", "^LL128", False),
        ("dgx-h100", "LL128", False),
    ],
)
def test_ll128_is_said_where_nccl_itself_does_not_take_it(machine: str, proto: str, harms: bool) -> None:
    done = run(
        "pick", "allreduce", "--machine", machine, "--nodes", "2", "--bytes", "1M", "--env", f"NCCL_PROTO={proto}"
    )
    assert ("may destroy data" in done.stderr) == harms


def test_unaligned_parts_of_a_jobs_calls_are_counted(tmp_path: Path) -> None:
    request = Request(Collective.AllGather, DataType.bfloat16, Op.sum)
    assert is_unaligned(request, 1_000_000, 16)
    assert not is_unaligned(request, 1 << 20, 16)
    assert not is_unaligned(Request(Collective.AllReduce, DataType.bfloat16, Op.sum), 1_000_000, 16)
    calls = tmp_path / "calls.csv"
    calls.write_text("collective,bytes,calls,dtype\nallgather,1000000,3,bfloat16\nallgather,1048576,2,bfloat16\n")
    done = run("budget", str(calls), "--machine", "dgx-h100", "--nodes", "2")
    assert "3 calls have bytes per rank that are no multiple of 16" in done.stdout + done.stderr


# --- GPU models ---


def test_a_skeleton_of_l20() -> None:
    file = report("R8-l20-skeleton.xml")
    given = ("--nodes", "2", "--nccl", "2.28.9", "--bytes", "1M", "--nic-gbps", "400")
    assert (
        "which NCCL treats as 16 nodes" in run("pick", "allreduce", "--topology", file, "--gpu", "l20", *given).stdout
    )
    assert run("pick", "allreduce", "--topology", file, "--gpu", "l40s", *given, code=2).stderr.endswith("valid: l20\n")
    said = run("pick", "allreduce", "--topology", file, code=2).stderr
    assert "--gpu MODEL, and how fast its 12 adapters are with --nic-gbps 400; valid: l20\n" in said


def test_a_skeleton_names_all_that_is_missing_at_once(tmp_path: Path) -> None:
    skeleton = Path(__file__).parents[2] / "docs" / "examples" / "skeleton.xml"
    said = run("pick", "allreduce", "--topology", str(skeleton), code=2).stderr
    assert "--gpu MODEL" in said
    assert "--nic-gbps 400" in said


# --- a job's environment, pasted ---


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("NCCL_VERSION=2.28.9-1", "NCCL_VERSION: NCCL 2.28.9 does not read it"),
        ("NCCL_BLOCKING_WAIT=1", "NCCL_BLOCKING_WAIT: NCCL 2.28.9 does not read it"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "TORCH_NCCL_ASYNC_ERROR_HANDLING: NCCL 2.28.9 does not read it"),
        ("NCCL_ALGOS=Ring", "does not read it; did you mean NCCL_ALGO?"),
        ("NCCL_DMABUF_ENABLE=1", "the topology and the nodes that are given here say what it does"),
        ("NCCL_IB_MERGE_VFS=0", "the topology and the nodes that are given here say what it does"),
        ("NCCL_HOSTID=a", "the topology and the nodes that are given here say what it does"),
        ("NCCL_CONF_FILE=/etc/nccl.conf", "the variables that it brings are not read here"),
        ("NCCL_TUNER_PLUGIN=libx.so", "a tuner plugin then chooses"),
    ],
)
def test_variables_that_reach_no_choice_are_noted_and_no_more(variable: str, says: str) -> None:
    asked = ("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9", "--bytes", "1M", "--json")
    done = run(*asked, "--env", variable)
    assert says in done.stderr
    assert json.loads(done.stdout) == json.loads(run(*asked).stdout)
