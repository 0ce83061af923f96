"""Answers the parent's requests until the parent ends."""

import gc
import sys
from pathlib import Path

from tuner.base.scratch import IN_THE_OPEN
from tuner.oracle.child import apart, channels, memory, ring
from tuner.oracle.child.issue import force, issue, issue_group, issue_groups, release_buffers
from tuner.oracle.child.messages import Messages
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import (
    CallsMessage,
    Connections,
    Failed,
    GroupMessage,
    Read,
    Reply,
    Request,
    Start,
    StartAgain,
)


def answer(world: World, request: Request) -> Reply | Connections:
    """Makes the answer to one request."""
    match request:
        case Start():
            return world.started()
        case StartAgain():
            release_buffers(world)
            return world.start_again(request)
        case CallsMessage():
            return issue(world, request)
        case GroupMessage():
            return issue_group(world, request)
        case tuple():
            return issue_groups(world, request)
        case Read.channels:
            return channels.read(world)
        case Read.connections:
            ring.connect(world)
            return memory.connections(world.symbols, world.comms)
        case _:
            return force(request)


def serve(messages: Messages) -> None:
    """Serves requests; the first one starts NCCL. NCCL's threads may still run when the parent has ended."""
    world: World | None = None
    while True:
        request = messages.receive()
        try:
            world = world or World(request)
            messages.send(answer(world, request))
        except Failure as failure:
            messages.send(Failed(str(failure), failure.returned))


gc.disable()  # requests and replies have no cycles
if not apart.OWN_SHARED_MEMORY:
    Path(sys.argv[2], IN_THE_OPEN).touch()
serve(Messages(int(sys.argv[1])))
