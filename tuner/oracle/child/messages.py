"""Exchanges messages between a child process and its parent."""

import os
import pickle
import queue
import socket
import threading
from typing import Any

from tuner.oracle.messages import Connections, Failed, Reply


class Messages:
    """Sends and receives pickled records over a socket. A thread reads, so that the process ends as soon as its parent
    does."""

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
        """Waits for the next request and returns it."""
        return self._received.get()

    def send(self, message: Reply | Connections | Failed) -> None:
        """Writes one complete reply."""
        pickle.dump(message, self._stream, pickle.HIGHEST_PROTOCOL)
        self._stream.flush()
