"""The common part of the processes for pictures and speech: requests, one after another.

Requests have one ``do``: generate, cancel, close. Answers have one ``type``: begun, finished,
failed, lost, log, and those of a kind of request.
"""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from io import BufferedReader
from queue import Empty, SimpleQueue

from wgpu_backend.errors import BackendError, DeviceLost
from wgpu_backend.server.worker.event_sender import EventSender, connect, report_error
from wgpu_backend.server.worker.frames import Message, read_message
from wgpu_backend.server.worker.messages import error_to_plain


class Cancelled(BackendError):
    """The client of this request has gone."""


class JobRunner(ABC):
    """A runner of requests that keeps the model of the last one open."""

    def __init__(self, sender: EventSender) -> None:
        self._sender = sender
        self._inbox: SimpleQueue[tuple[Message, bytes] | None] = SimpleQueue()
        # Requests up to this number were cancelled.
        self._left = -1
        # Seconds until an idle model is closed; None to keep it.
        self._keep_seconds: float | None = None

    def take(self, message: Message, raw: bytes) -> None:
        """Handle a message; runs in the reading thread."""
        match message["do"]:
            case "generate":
                self._sender.send({"type": "begun", "id": message["id"]})
                self._inbox.put((message, raw))
            case "cancel":
                self._left = message["id"]
            case _:
                self._left = sys.maxsize
                self._inbox.put(None)

    def run(self) -> int:
        """Serve requests until the process has to end; return its exit code."""
        while (found := self._next()) is not None:
            message, raw = found
            number: int = message["id"]
            try:
                self.require_client(number)
                self.serve(message, raw)
            except DeviceLost as error:
                self._sender.send({"type": "lost", "error": error_to_plain(error)})
                return 1
            except Exception as error:
                # The server reports it to the client.
                plain = report_error(error)
                self._sender.send({"type": "failed", "id": number, "error": plain})
        self.close()
        return 0

    def _next(self) -> tuple[Message, bytes] | None:
        """Wait for a request; close a model that is idle for too long."""
        try:
            return self._inbox.get(timeout=self._keep_seconds)
        except Empty:
            self.close()
            self._keep_seconds = None
            return self._inbox.get()

    def require_client(self, number: int) -> None:
        """Raise if the client of a request has gone."""
        if number <= self._left:
            raise Cancelled("the client has gone")

    @abstractmethod
    def serve(self, message: Message, raw: bytes) -> None:
        """Serve a request, and send its results."""

    @abstractmethod
    def close(self) -> None:
        """Close the open model, if there is one."""


def serve_socket(handle: str, make: Callable[[EventSender], JobRunner]) -> None:
    """Serve requests from a socket, and exit.

    Parameters
    ----------
    handle : str
        See `frames.open_socket`.
    make : callable
        Makes the runner.
    """
    source, sender = connect(handle)
    runner = make(sender)
    threading.Thread(
        target=_read_messages, args=(source, runner), name="reader", daemon=True
    ).start()
    code = runner.run()
    sender.close()
    # Exit without cleaning up: calls into the driver of a lost device may crash.
    os._exit(code)


def _read_messages(source: BufferedReader, runner: JobRunner) -> None:
    """Read messages; exit when the server is gone, whatever this process is doing."""
    try:
        while (found := read_message(source)) is not None:
            runner.take(*found)
    finally:
        os._exit(0)
