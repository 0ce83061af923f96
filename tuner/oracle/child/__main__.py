"""Answers the parent's requests until it is gone."""

import os
import pickle
import queue
import socket
import sys
import threading
from typing import Any

from tuner.oracle.child import channels
from tuner.oracle.child.forcing import force
from tuner.oracle.child.issue import issue, issue_group
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import Calls, Failed, Group, ReadChannels, Reply, Request, Start


class Messages:
    """Pickled records over a socket. A thread reads, so that the process ends as soon as its parent does."""

    def __init__(self, descriptor: int) -> None:
        self._stream = socket.socket(fileno=descriptor).makefile("rwb")
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self._received.put(pickle.load(self._stream))
            except (EOFError, OSError):
                os._exit(0)

    def receive(self) -> Any:
        """The next request; waits for it."""
        return self._received.get()

    def send(self, message: Reply | Failed) -> None:
        """Writes one reply, whole."""
        pickle.dump(message, self._stream, pickle.HIGHEST_PROTOCOL)
        self._stream.flush()


def answer(world: World, request: Request) -> Reply:
    """The answer to one request."""
    match request:
        case Start():
            return world.started()
        case Calls():
            return issue(world, request)
        case Group():
            return issue_group(world, request)
        case ReadChannels():
            return channels.read(world, request)
        case _:
            return force(request)


def serve(messages: Messages) -> None:
    """The first request starts the world; threads of NCCL may still be running when the parent is gone."""
    world: World | None = None
    while True:
        request = messages.receive()
        try:
            world = world or World(request)
            messages.send(answer(world, request))
        except Failure as failure:
            messages.send(Failed(str(failure)))


serve(Messages(int(sys.argv[1])))
