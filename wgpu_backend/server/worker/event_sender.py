"""The sender of a worker's events and messages to the server."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from io import BufferedReader
from itertools import groupby
from queue import Empty, Queue
from typing import cast

from wgpu_backend.engine.batching.generation import Mailbox
from wgpu_backend.engine.batching.results import Event
from wgpu_backend.errors import BackendError
from wgpu_backend.ops.plugins import describe_mistake
from wgpu_backend.server.worker.frames import Message, encode_message, make_reader, open_socket
from wgpu_backend.server.worker.messages import Plain, error_to_plain, to_plain

_LOG = logging.getLogger("wgpu_backend.worker")
_MOST_WAITING = (
    # Most waiting messages. Producers wait beyond that, so a stopped server does not fill the
    # memory.
    4096
)
_FLUSH_SECONDS = 2.0
News = tuple[int, Event] | tuple[Message, bytes]


def connect(handle: str) -> tuple[BufferedReader, EventSender]:
    """Connect a worker process to the server: return the reader and the sender.

    The server writes this process's logs, and handles Ctrl-C for it.

    Parameters
    ----------
    handle : str
        See `frames.open_socket`.
    """
    # A terminal sends Ctrl-C to the whole process group; only the server acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = open_socket(handle)
    sender = EventSender(sock)
    sender.send_logs()
    return make_reader(sock), sender


class EventSender:
    """A sender with its own thread, so that a step does not wait for JSON and the socket.

    Messages are sent without delay, each token as an event of its own: clients count pieces and
    measure the time between them. Messages that come while the socket is full are sent together.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._waiting: Queue[News | None] = Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def send_event(self, number: int, event: Event) -> None:
        """Send an event of a request."""
        self._waiting.put((number, event))

    def send(self, message: Message, raw: bytes = b"") -> None:
        """Send another message."""
        self._waiting.put((message, raw))

    def send_error(self, number: int, error: BaseException) -> None:
        """Report that a request cannot be answered."""
        self.send({"type": "failed", "id": number, "error": report_error(error)})

    def send_logs(self) -> None:
        """Send this process's log records to the server from now on."""
        send_logs(self.send)

    def close(self) -> None:
        """Send the waiting messages, unless the server has stopped reading."""
        self._waiting.put(None)
        self._thread.join(_FLUSH_SECONDS)

    def _run(self) -> None:
        try:
            while (first := self._waiting.get()) is not None:
                waiting = [first]
                while (message := self._take_next()) is not None:
                    waiting.append(message)
                self._socket.sendall(_encode(waiting))
        except OSError:
            # The server is gone; the reader handles that.
            return

    def _take_next(self) -> News | None:
        """Return another waiting message; leave the end marker in the queue."""
        if self._waiting.queue and self._waiting.queue[0] is not None:
            try:
                return self._waiting.get_nowait()
            except Empty:
                return None
        return None


def report_error(error: BaseException) -> Plain:
    """Return an error for the server; the traceback of an unexpected one goes to the log only."""
    if isinstance(error, BackendError) or describe_mistake(error):
        return error_to_plain(error)
    _LOG.error("%s", "".join(traceback.format_exception(error)).rstrip())
    text = f"internal error: {type(error).__name__}"
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return {"kind": "BackendError", "message": text}


def send_logs(send: Callable[[Message], None]) -> None:
    """Send this process's log records from now on."""
    logger = logging.getLogger("wgpu_backend")
    logger.addHandler(_LogSender(send))
    logger.setLevel(logging.INFO)


class _LogSender(logging.Handler):
    """A log handler that sends records to the server."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__(logging.INFO)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._send({"type": "log", "name": record.name, "level": record.levelno, "text": text})


def _encode(waiting: list[News]) -> bytes:
    """Encode messages in order; consecutive events become one message."""
    parts: list[bytes] = []
    for is_event, run in groupby(waiting, lambda message: isinstance(message[1], Event)):
        if is_event:
            events = cast("Iterator[tuple[int, Event]]", run)
            plain = [[number, to_plain(event)] for number, event in events]
            parts.append(encode_message({"type": "events", "events": plain}))
        else:
            parts += [
                encode_message(*message) for message in cast("Iterator[tuple[Message, bytes]]", run)
            ]
    return b"".join(parts)


class ForwardingMailbox(Mailbox):
    """A mailbox that sends events on, and keeps none.

    Parameters
    ----------
    number : int
        The server's number of the request.
    """

    def __init__(self, number: int, choices: int, sender: EventSender) -> None:
        super().__init__(choices)
        self._number = number
        self._sender = sender

    def put(self, event: Event) -> None:
        """Send an event; ignore it after the end."""
        if self.ended:
            return
        # The mailbox of the server keeps the events; here only the end counts.
        self._left -= event.finish is not None
        self._sender.send_event(self._number, event)

    def fail(self, error: Exception) -> None:
        """End the request with an error, unless it has ended."""
        if not self.ended:
            self.error = error
            self._sender.send_error(self._number, error)
