"""Clients of ``nccl-tuner mcp``: the SDK's own, over a real pipe and over HTTP."""

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.command_line import COMMAND
from tuner.cli.tools import SHORT_BYTES

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@dataclass
class Client:
    """A session of the SDK's client, which counts what it asks and the bytes of the answers."""

    session: Any
    calls: int = 0
    bytes: int = 0

    async def ask(self, tool: str, wrong: bool = False, **given: Any) -> Any:
        """The short answer, parsed; a line where the tool says that it went wrong."""
        said = await self.session.call_tool(tool, given)
        text = said.content[0].text
        self.calls += 1
        self.bytes += len(text.encode())
        assert said.isError == wrong, text
        if wrong:
            assert len(said.content) == 1
            assert "\n" not in text
            assert "Traceback" not in text
            assert text.startswith("nccl-tuner: ")
            return text
        assert len(text.encode()) <= SHORT_BYTES
        answer = json.loads(text)
        assert answer["tool"] == tool
        assert str(said.content[1].uri) == answer["whole"]
        return answer

    async def whole(self, answer: Any) -> Any:
        """The whole that a short answer names."""
        read = await self.session.read_resource(answer["whole"])
        return json.loads(read.contents[0].text)


Dialogue = Callable[[Client], Awaitable[None]]
Talk = Callable[..., None]


@contextlib.asynccontextmanager
async def lines(words: list[str], environment: dict[str, str], folder: Path) -> AsyncIterator[Any]:
    """A session over a real pipe."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=str(COMMAND), args=words, env=environment, cwd=str(folder))
    with (folder / "errors").open("w") as errors:
        async with stdio_client(server, errlog=errors) as pipes, ClientSession(*pipes) as session:
            yield session


@contextlib.asynccontextmanager
async def http(words: list[str], environment: dict[str, str], folder: Path) -> AsyncIterator[Any]:
    """A session over streamable HTTP."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    with serving(words, environment, folder) as address:
        async with streamable_http_client(address) as (read, write, *_), ClientSession(read, write) as session:
            yield session


@contextlib.contextmanager
def serving(words: list[str], environment: dict[str, str], folder: Path) -> Iterator[str]:
    """The address of a server over HTTP."""
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen([COMMAND, *words, "--http", "0"], stderr=errors, env=environment, cwd=folder) as server,
    ):
        try:
            for _ in range(3000):
                if said := re.search(r"http://127\.0\.0\.1:\d+/mcp", (folder / "errors").read_text()):
                    break
                time.sleep(0.01)
            assert said, "no address"
            yield said[0]
        finally:
            server.terminate()


def talk_over(transport: Callable[..., Any], folder: Path) -> Talk:
    """Runs a dialogue with a server of its own, which may read the examples and ``folder / "allowed"``."""
    import anyio

    (folder / "allowed").mkdir()

    def talked(dialogue: Dialogue, **variables: str) -> None:
        async def talking() -> None:
            words = ["mcp", "--allow", str(EXAMPLES), "--allow", str(folder / "allowed")]
            async with transport(words, {**os.environ, **variables}, folder) as session:
                with anyio.fail_after(120):
                    await session.initialize()
                    await dialogue(Client(session))

        anyio.run(talking)
        assert "Traceback" not in (folder / "errors").read_text()

    return talked
