"""``nccl-tuner mcp``: the commands as tools of the Model Context Protocol, for agents in editors and chats.

The SDK is imported by the command alone: it takes longer to load than any answer to be made. Its lowest server is used,
as the tools are declared in one table (:mod:`tuner.cli.tools`) and not by signatures.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tuner.base import extras
from tuner.cli import options
from tuner.cli.command import FILE

if TYPE_CHECKING:
    from tuner.cli.fence import Fence

JSON = "application/json"
KEPT_VARIABLES = frozenset({"NCCL_TUNER_CACHE", "NCCL_TUNER_BOUNDS"})
SAYS = (
    "What NVIDIA's NCCL picks, why, and whether it is best, emulated bit for bit without a GPU. Answers are short; "
    "the resource that each names has the whole. Begin with machines and releases for names; sizes are NCCL's nBytes."
)


@click.command(name="mcp", cls=options.Command)
@options.option(
    "--allow",
    "folders",
    "A folder whose files may be read; repeatable. [default: none]",
    type=FILE,
    metavar="DIR",
    multiple=True,
)
def command(folders: tuple[Path, ...]) -> None:
    """Serve the commands as tools to an agent (Model Context Protocol), over standard input and output.

    Tools: pick, explain, diff, diagnose, accept, check_table, machines, releases, budget. Nothing is written or
    fetched, libnccl is not asked, and the NCCL variables of the server are not those of an answer. Files are read
    below the folders that are allowed, up to 50 MiB each.

    \b
    nccl-tuner mcp --allow ~/logs
    """
    extras.require("mcp", "this command")
    from tuner.cli.fence import Fence, real_folder

    fence = Fence([real_folder(folder) for folder in folders])
    for name in [each for each in os.environ if each.startswith("NCCL_") and each not in KEPT_VARIABLES]:
        del os.environ[name]
    _serve(fence)


def _serve(fence: "Fence") -> None:
    import signal
    import sys
    from importlib.metadata import version
    from io import TextIOWrapper

    import anyio
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.lowlevel.helper_types import ReadResourceContents
    from mcp.server.stdio import stdio_server

    from tuner.base.scratch import ScratchFolder
    from tuner.cli.tools import ADDRESS, TOOLS, Desk

    desk = Desk(fence)
    server: Any = Server("nccl-tuner", version=version("nccl-tuner"), instructions=SAYS)
    reads = types.ToolAnnotations(readOnlyHint=True, openWorldHint=False)

    scratch = ScratchFolder("mcp")

    def end(*_: object) -> NoReturn:
        scratch.cleanup()
        os._exit(130)  # a thread waits for standard input, and nothing but its end would wake it

    async def tools() -> list[types.Tool]:
        return [
            types.Tool(name=each.name, description=each.says, inputSchema=each.schema, annotations=reads)
            for each in TOOLS
        ]

    async def called(name: str, given: dict[str, object]) -> types.CallToolResult:
        # Here and not in a thread: answers take turns, and a clock can end one in the main thread alone.
        try:
            reply = desk.ask(name, given)
        except KeyboardInterrupt:
            end()
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=reply.text)]
        if reply.address:
            link = {"type": "resource_link", "uri": reply.address, "name": f"{name}, whole", "mimeType": JSON}
            content.append(types.ResourceLink.model_validate(link))
        return types.CallToolResult(content=content, isError=reply.wrong)

    async def kept() -> list[types.Resource]:
        listed = [{"uri": f"{ADDRESS}{key}", "name": f"whole answer {key[:8]}", "mimeType": JSON} for key in desk.kept]
        return [types.Resource.model_validate(each) for each in listed]

    async def read(uri: object) -> list[ReadResourceContents]:
        return [ReadResourceContents(content=desk.whole(str(uri)), mime_type=JSON)]

    server.list_tools()(tools)
    server.call_tool(validate_input=False)(called)
    server.list_resources()(kept)
    server.read_resource()(read)

    # What else is printed goes to standard error: standard output is the protocol's.
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    answers = TextIOWrapper(os.fdopen(own, "wb"), encoding="utf-8")

    async def serve() -> None:
        async with stdio_server(stdout=anyio.wrap_file(answers)) as (asked, said):
            await server.run(asked, said, server.create_initialization_options())

    with scratch:
        fence.build(Path(scratch.name))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        anyio.run(serve)
