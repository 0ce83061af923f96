"""``nccl-tuner mcp``: the commands as tools of the Model Context Protocol, for agents in editors and chats.

Over standard input and output, each message is a line; over HTTP, on the loopback address, it is a request. All answers
are computed one by one in the main thread, the only thread in which a timer can end them.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tuner.cli.command import FILE, Command, option

if TYPE_CHECKING:
    from tuner.cli.mcp_messages import AgentMessages

KEPT_VARIABLES = frozenset({"NCCL_TUNER_CACHE", "NCCL_TUNER_BOUNDS"})
MOST_MESSAGE_BYTES = 8 << 20
WIDTH = 10_000  # of what commands say beside their JSON: a note is a line


@click.command(name="mcp", cls=Command)
@option(
    "--allow",
    "folders",
    "A folder whose files may be read; repeatable. [default: none]",
    type=FILE,
    metavar="DIR",
    multiple=True,
)
@option(
    "--http",
    "port",
    "Serve over HTTP at http://127.0.0.1:PORT/mcp instead of standard input and output (streamable HTTP; 0 "
    "chooses a free port).",
    type=click.IntRange(0, 65535),
    metavar="PORT",
)
def command(folders: tuple[Path, ...], port: int | None) -> None:
    """Serve the commands as tools to an agent (Model Context Protocol), over standard input and output or HTTP.

    Tools: pick, explain, diff, diagnose, accept, check_table, machines, releases, budget. Nothing is written or
    fetched, libnccl is not asked, and the NCCL variables of the server do not influence an answer. Files are read
    below the folders that are allowed, up to 50 MiB each.

    \b
    nccl-tuner mcp --allow ~/logs
    nccl-tuner mcp --http 8765 --allow ~/logs
    """
    from tuner.base.scratch import ScratchFolder
    from tuner.cli.fence import Fence, real_folder
    from tuner.cli.mcp_messages import AgentMessages
    from tuner.cli.tools import Desk

    fence = Fence([real_folder(folder) for folder in folders])
    for name in [each for each in os.environ if each.startswith("NCCL_") and each not in KEPT_VARIABLES]:
        del os.environ[name]
    os.environ["COLUMNS"] = str(WIDTH)
    scratch = ScratchFolder("mcp")

    def end(*_: object) -> NoReturn:
        scratch.cleanup()
        os._exit(130)  # from anywhere inside an answer, whose errors are not to swallow it

    with scratch:
        fence.build(Path(scratch.name))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        messages = AgentMessages(Desk(fence))
        try:
            if port is None:
                _serve_lines(messages)
            else:
                _serve_http(messages, port)
        except KeyboardInterrupt:
            end()


def _serve_lines(messages: "AgentMessages") -> None:
    """Answers one message per line until standard input ends; everything else goes to standard error."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while line := sys.stdin.buffer.readline(MOST_MESSAGE_BYTES + 1):
        if len(line) > MOST_MESSAGE_BYTES:  # what follows is the rest of it
            own.write(messages.too_large(MOST_MESSAGE_BYTES) + b"\n")
            own.flush()
            break
        if line.strip() and (reply := messages.answer(line)) is not None:
            own.write(reply + b"\n")
            own.flush()


def _serve_http(messages: "AgentMessages", port: int) -> None:
    from http.server import HTTPServer

    from tuner.cli.mcp_http import Handler

    with HTTPServer(("127.0.0.1", port), partial(Handler, messages, MOST_MESSAGE_BYTES)) as server:
        address: Any = server.server_address
        click.echo(f"nccl-tuner: http://127.0.0.1:{address[1]}/mcp", err=True)
        server.serve_forever()
