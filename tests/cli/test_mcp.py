"""The commands as tools for agents: the SDK's own client at the other end of a real pipe, and what it may not reach."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support.command_line import COMMAND, run, subcommands
from tests.support.mcp_client import EXAMPLES, Client, Talk, http, lines, serving, talk_over
from tuner.base.errors import BadInput
from tuner.cli import everything
from tuner.cli.command import WRITTEN
from tuner.cli.fence import MOST_FILE_BYTES, Fence, TooSlow, real_folder
from tuner.cli.mcp_messages import AgentMessages
from tuner.cli.tools import BY_NAME, MOST_KEPT, SHORT_BYTES, TOOLS, Desk, ParameterKind, Tool, ToolParameter, short

anyio = pytest.importorskip("anyio")
mcp = pytest.importorskip("mcp")

TWO: dict[str, Any] = {"machine": "dgx-h100", "nodes": 2, "nccl": "2.28.9"}
WORDS = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--json")


@pytest.fixture(params=[lines, http])
def talk(request: pytest.FixtureRequest, tmp_path: Path) -> Talk:
    return talk_over(request.param, tmp_path)


def test_a_client_lists_tools_that_only_read(talk: Talk) -> None:
    async def dialogue(client: Client) -> None:
        tools = (await client.session.list_tools()).tools
        names = ["pick", "explain", "diff", "diagnose", "accept", "check_table", "machines", "releases", "budget"]
        assert [each.name for each in tools] == names
        for each in tools:
            assert each.annotations.readOnlyHint
            assert each.inputSchema["additionalProperties"] is False
            assert all(value["description"] for value in each.inputSchema["properties"].values())

    talk(dialogue)


def test_dialogue_why_is_a_call_slow_and_would_an_upgrade_help(talk: Talk) -> None:
    """Which machine, what is picked there, why, and what another release changes."""

    async def dialogue(client: Client) -> None:
        names = (await client.ask("machines"))["answer"]["machines"]
        assert {"dgx-h100", "gb200-nvl72"} <= {*names}
        picked = await client.ask("pick", collective="allreduce", bytes="8,1M", **TWO)
        whole = await client.whole(picked)
        assert whole == json.loads(run("pick", "allreduce", "--bytes", "8,1M", *WORDS).stdout)
        why = await client.ask("explain", collective="allreduce", bytes="1M", **TWO)
        assert why["answer"]["pick"]["algorithm"] == whole["picks"][1]["pick"]["algorithm"]
        assert any("reason" in each for each in why["answer"]["others"] if isinstance(each, dict))
        releases = (await client.ask("releases"))["answer"]["compared"]
        place: dict[str, Any] = {"machine": "dgx-h100", "nodes": 2}
        changed = await client.ask("diff", collectives=["allreduce"], before="2.22.3", after=releases[8], **place)
        words = ("diff", "allreduce", "2.22.3", releases[8], "--machine", "dgx-h100", "--nodes", "2", "--json")
        assert await client.whole(changed) == json.loads(run(*words).stdout)
        assert changed["answer"]["comparisons"][0]["changes"][0]["from_bytes"] > 8

    talk(dialogue)


def test_dialogue_is_this_run_normal(talk: Talk) -> None:
    """A log is diagnosed, its results are judged, and a shipped run passes."""

    async def dialogue(client: Client) -> None:
        seen = await client.ask("diagnose", files=["nccl.log"])
        assert seen["verdict"] == "answered"
        assert "diagnose.no_nvls" in seen["codes"]
        judged = await client.ask("accept", results=["all_reduce.log"], machine="dgx-h100")
        assert (judged["verdict"], judged["exit_code"]) == ("no", 1)
        assert "accept.fails" in judged["codes"]
        assert judged["answer"]["pass"] is False
        public = await client.ask("accept", results=["h100-8x-2n__unknown__nebius"], machine="dgx-h100", nccl="2.26.2")
        assert public["answer"]["pass"] is True

    talk(dialogue)


def test_dialogue_a_table_for_a_job(talk: Talk, tmp_path: Path) -> None:
    """What a model's step costs, a topology that an agent has, and a table that it wrote, with a row without effect."""
    table = tmp_path / "allowed" / "my.conf"
    table.write_text("allreduce,1048576,8388608,ring,ll128,-1,2,16,-1,-1\n" * 2)

    async def dialogue(client: Client) -> None:
        step = await client.ask("budget", model="llama-3-70b", machine="dgx-h100", nodes=64, job="tp=8,pp=4")
        assert step["answer"]["totals"][0]["total_us"] > 0
        traced = await client.ask("budget", files=["nsight.sqlite"], **TWO)
        assert traced["answer"]["calls"] == 8
        own = await client.ask("diagnose", files=["node.xml"])
        assert own["answer"]["files"][0]["machine"] == "dgx-a100"
        linted = await client.ask("check_table", files=["my.conf"], **TWO)
        assert linted["verdict"] == "no"
        assert {each["line"] for each in linted["answer"]["tables"][0]["findings"] if each["severity"] != "note"} == {2}

    talk(dialogue)


def test_what_is_wrong_is_one_line(talk: Talk, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    (tmp_path / "secret.xml").write_text((EXAMPLES / "node.xml").read_text())
    (tmp_path / "secret.table").write_text("allreduce * * * ring simple\n")
    (allowed / "link.xml").symlink_to(tmp_path / "secret.xml")
    (allowed / "broken.xml").write_text("<system version='1'><cpu")
    with (allowed / "large.log").open("wb") as large:
        large.truncate(MOST_FILE_BYTES + 1)
    os.mkfifo(allowed / "pipe.log")
    outside = "outside the folders that are allowed"

    async def dialogue(client: Client) -> None:
        async def refused(tool: str, **given: Any) -> str:
            return str(await client.ask(tool, wrong=True, **given))

        said = await refused("pick", collective="allreduce", machine="dgx-h10")
        # The command line adds a line of its own, the command that would answer.
        assert said == run("pick", "allreduce", "--machine", "dgx-h10", code=2).stderr.splitlines()[0]
        for name in ("/etc/passwd", "../secret.xml", str(tmp_path / "secret.xml"), "link.xml", "/dev/stdin", ".."):
            assert outside in await refused("diagnose", files=[name]), name
            assert outside in await refused("machines", name=name if "/" in name else f"./{name}"), name
        # Words that name a file are no parameter for files, and are refused as they are opened.
        assert outside in await refused("pick", collective=f"@{tmp_path}/secret.xml", **TWO)
        assert outside in await refused("pick", collective="allreduce", tuner=f"table:{tmp_path}/secret.table", **TWO)
        assert outside in await refused("pick", collective="allreduce", tuner="table:secret.table", **TWO)
        assert outside in await refused("diff", changes=[f"constants={tmp_path}/secret.xml"], **TWO)
        assert "50 MiB" in await refused("diagnose", files=["large.log"])
        assert "too large" in await refused("pick", collective=f"@{allowed}/large.log", **TWO)
        assert "not a regular file" in await refused("diagnose", files=["pipe.log"])
        assert "No such file" in await refused("diagnose", files=["nothing.log"])
        assert "broken.xml" in await refused("pick", collective="allreduce", topology="broken.xml")
        # Names and types.
        assert "did you mean pick" in await refused("pik")
        assert "valid: collective, bytes" in await refused("pick", collective="allreduce", libnccl=True, **TWO)
        assert "no parameter 'out'" in await refused("diagnose", files=["node.xml"], out="repaired.xml")
        assert "without collective" in await refused("pick", **TWO)
        assert "valid: a whole number" in await refused("pick", collective="allreduce", machine="dgx-h100", nodes="two")
        assert "valid: an object" in await refused("pick", collective="allreduce", env="NCCL_ALGO=Ring", **TWO)
        assert "--libnccl" in await refused("pick", collective="--libnccl", **TWO)
        # And it goes on.
        assert (await client.ask("pick", collective="allreduce", bytes="8", **TWO))["verdict"] == "answered"

    talk(dialogue)


def test_variables_of_the_server_are_not_of_an_answer(talk: Talk) -> None:
    async def dialogue(client: Client) -> None:
        own = await client.ask("pick", collective="allreduce", bytes="1M", **TWO)
        assert own["answer"]["picks"][0]["pick"]["algorithm"] == "Tree"
        asked = await client.ask("pick", collective="allreduce", bytes="1M", env={"NCCL_ALGO": "Ring"}, **TWO)
        assert asked["answer"]["picks"][0]["pick"]["algorithm"] == "Ring"
        assert "notes" not in own

    talk(dialogue, NCCL_ALGO="Ring", NCCL_TUNER_CONFIG_FILE="/nowhere", COLUMNS="20", FORCE_COLOR="1")


def test_nothing_is_written(talk: Talk, tmp_path: Path) -> None:
    async def dialogue(client: Client) -> None:
        await client.ask("diagnose", files=["node.xml"])
        await client.ask("machines", name="topo.txt", gpu="h100-sxm", nic_gbps=400, cpu="GenuineIntel:6:143")
        await client.ask("pick", collective="allreduce", topology="node.xml", nccl="2.28.9", nodes=3)

    talk(dialogue, NCCL_TUNER_CACHE=str(tmp_path / "cache"), TMPDIR=str(tmp_path / "allowed"))
    assert not (tmp_path / "cache").exists()
    assert list((tmp_path / "allowed").iterdir()) == []


def sent(*messages: object) -> list[Any]:
    """The replies to messages in this process."""
    replies = AgentMessages(Desk(Fence([])))
    made = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages)
    return [None if (reply := replies.answer(each)) is None else json.loads(reply) for each in made]


def asked(method: object, number: object = 1, **given: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": given}


def test_replies_have_the_form_of_the_protocol() -> None:
    """As the SDK's own types read them."""
    from mcp import types

    begin = {"capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "initialize": (types.InitializeResult, {"protocolVersion": "2025-06-18", **begin}),
        "ping": (types.EmptyResult, {}),
        "tools/list": (types.ListToolsResult, {}),
        "tools/call": (types.CallToolResult, {"name": "releases"}),
        "resources/list": (types.ListResourcesResult, {}),
        "resources/templates/list": (types.ListResourceTemplatesResult, {}),
    }
    for reply, (kind, _) in zip(
        sent(*(asked(each, **of[1]) for each, of in kinds.items())), kinds.values(), strict=True
    ):
        kind.model_validate(types.JSONRPCResponse.model_validate(reply).result)
    (old, unknown) = sent(
        *(asked("initialize", protocolVersion=each, **begin) for each in ("2024-11-05", "1999-01-01"))
    )
    assert old["result"]["protocolVersion"] == "2024-11-05"
    assert unknown["result"]["protocolVersion"] == types.LATEST_PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("message", "number", "says"),
    [
        (b"{", -32700, "not JSON"),
        (b"[" * 100_000, -32700, "not JSON"),
        (b"\xff", -32700, "not JSON"),
        (1, -32600, "valid: an object"),
        ({"id": 1, "method": "ping"}, -32600, "JSON-RPC"),
        (asked("ping", number=True), -32600, "id"),
        (asked("tools/cal"), -32601, "tools/call"),
        (asked(["ping"]), -32601, "valid: initialize"),
        ({**asked("ping"), "params": []}, -32602, "not an object"),
        (asked("tools/call", name=["pick"]), -32602, "valid:"),
        (asked("tools/call", name="pick", arguments=[1]), -32602, "valid:"),
        (asked("resources/read"), -32602, "valid:"),
        (asked("resources/read", uri="nccl-tuner://answer/none"), -32002, "ask again"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_request_is_answered_with_an_error(message: object, number: int, says: str) -> None:
    (reply,) = sent(message)
    assert reply["error"]["code"] == number
    assert says in reply["error"]["message"]
    assert "\n" not in reply["error"]["message"]


def test_notifications_and_replies_are_not_answered() -> None:
    assert sent({"jsonrpc": "2.0", "method": "notifications/initialized"}) == [None]
    assert sent({"jsonrpc": "2.0", "id": 7, "result": {}}) == [None]
    several = [asked("ping", 1), {"jsonrpc": "2.0", "method": "notifications/cancelled"}, asked("ping", "b")]
    ((first, second),) = sent(several)
    assert (first["id"], second["id"]) == (1, "b")


def test_http_refuses_whoever_is_not_meant(tmp_path: Path) -> None:
    """Pages of a browser, names that lead here, paths and methods that there are not, and what is too large."""
    from http.client import HTTPConnection

    ping = json.dumps(asked("ping"))

    def status(method: str = "POST", path: str = "/mcp", body: str = ping, **headers: str) -> int:
        connection = HTTPConnection(place, timeout=30)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse().status

    with serving(["mcp"], dict(os.environ), tmp_path) as address:
        place = address.removeprefix("http://").removesuffix("/mcp")
        assert status() == 200
        assert status(Origin="http://localhost:3000") == 200
        assert status(body=json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})) == 202
        assert status(Origin="https://example.com") == 403
        assert status(Origin="http://localhost.example.com") == 403
        assert status(Host="example.com") == 403
        assert status(path="/") == 404
        assert status("GET") == 405
        assert status("DELETE") == 405
        assert status(MCP_Protocol_Version="2025-06-18") == 200
        assert status(MCP_Protocol_Version="1999-01-01") == 400
        with contextlib.suppress(ConnectionError):  # it does not read on
            assert status(Content_Length=str(1 << 40)) == 413
        assert status(Content_Length="-1") == 411
        assert status() == 200


@pytest.mark.parametrize("end", ["pipe", signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_client(end: Any) -> None:
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
    with subprocess.Popen(
        [COMMAND, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "nccl-tuner"
        if end == "pipe":
            server.stdin.close()
        else:
            server.send_signal(end)
        assert server.wait(timeout=30) == (0 if end == "pipe" else 130)
        assert b"Traceback" not in server.stderr.read()


@pytest.mark.parametrize(("folder", "says"), [("/nowhere", "No such file"), ("/", "name a folder below it")])
def test_only_a_folder_is_allowed(folder: str, says: str) -> None:
    assert says in run("mcp", "--allow", folder, code=2).stderr


def _of_command(tool: Tool) -> click.Command:
    found: click.Command = everything
    for name in tool.command:
        assert isinstance(found, click.Group)
        below = found.get_command(click.Context(found), name)
        assert below is not None
        found = below
    return found


CALLED = [each for each in TOOLS if each.command]


@pytest.mark.parametrize("tool", CALLED, ids=lambda tool: tool.name)
def test_every_parameter_is_one_of_the_command(tool: Tool) -> None:
    """Of its kind, and none that writes or that asks libnccl."""
    params = _of_command(tool).params
    options = {name: each for each in params if isinstance(each, click.Option) for name in each.opts}
    arguments = [each for each in params if isinstance(each, click.Argument)]
    assert bool(arguments) == any(each.option is None for each in tool.parameters)
    for each in tool.parameters:
        if each.option is None:
            continue
        option = options[each.option or f"--{each.name.replace('_', '-')}"]
        assert option.name not in WRITTEN
        assert "libnccl" not in (option.name or "")
        assert option.is_flag == (each.kind is ParameterKind.FLAG), each.name
        if each.name != "engine":  # taken twice by the command line, to be refused there
            assert option.multiple == (each.kind in (ParameterKind.TEXTS, ParameterKind.PAIRS)), each.name
        if isinstance(option.type, click.Path):
            assert each.kind in (ParameterKind.FILE, ParameterKind.NAME_OR_FILE), each.name


def test_no_tool_is_of_a_command_that_is_not_there() -> None:
    names = {each.name for each in subcommands(everything)}
    assert {each.command[-1] for each in CALLED} <= names


def test_no_folder_no_file() -> None:
    with pytest.raises(BadInput, match=re.escape("--allow DIR")):
        Fence([]).file("/etc/passwd")


def test_an_answer_that_takes_too_long_is_broken_off() -> None:
    """Although it takes every error for one of its own."""

    def stubborn() -> None:
        for _ in range(2):
            with contextlib.suppress(Exception):
                time.sleep(30)

    with pytest.raises(TooSlow), Fence([]).up(0.02):
        stubborn()


def test_a_short_answer_is_short_whatever_it_is_of() -> None:
    about = {"tool": "x", "verdict": "answered", "codes": ["c" * 200] * 100}
    for whole in ([{"a": "x" * 5000, "b": ["ä" * 290] * 50}] * 400, {"a": {"a": {"a": list(range(9999))}}}, None):
        text = short(about, whole, ("a b", "a"))
        assert len(text.encode()) <= SHORT_BYTES
        assert json.loads(text)["verdict"] == "answered"


def test_the_last_answers_are_kept_and_no_more() -> None:
    desk = Desk(Fence([]))
    addresses = [desk._keep(json.dumps(number)) for number in range(MOST_KEPT + 1)]
    assert len(set(addresses)) == len(addresses)
    with pytest.raises(BadInput, match="ask again"):
        desk.whole(str(addresses[0]))
    assert desk.whole(str(addresses[-1])) == str(MOST_KEPT)


def test_a_value_is_one_word_of_the_command_line(tmp_path: Path) -> None:
    """What begins with a dash stays the value of its option, and an argument stays one."""
    fence = Fence([real_folder(tmp_path)])
    words = BY_NAME["pick"].words({"collective": "--help", "machine": "--version", "nodes": "2"}, fence)
    assert words == ["pick", "--json", "--machine=--version", "--nodes=2", "--", "--help"]
    assert ToolParameter("env", "", ParameterKind.PAIRS).words({"A": 1, "B": "x y"}, fence) == [
        "--env=A=1",
        "--env=B=x y",
    ]


def test_a_server_begins_with_no_more_than_it_needs() -> None:
    """Neither the SDK nor what a pick computes with is loaded before the first answer."""
    code = (
        "import sys; import tuner.cli.mcp; assert 'tuner.cli.tools' not in sys.modules;"
        "import tuner.cli.mcp_messages;"
        "assert not {'mcp', 'anyio', 'http.server', 'tuner.scenario', 'tuner.emulator'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
