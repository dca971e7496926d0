"""What a worker has to tell, on its way to the server."""

from __future__ import annotations

import socket
import threading
from queue import Empty, Queue

from wgpu_backend.serving.generation import Mailbox
from wgpu_backend.serving.results import Event
from wgpu_backend.worker.frames import Message, packed
from wgpu_backend.worker.messages import error_plain, event_plain

_MOST_WAITING = (
    4096  # messages; whoever has more to tell waits, so a server that stopped fills none
)
_FLUSH_SECONDS = 2.0
Told = tuple[int, Event] | tuple[Message, bytes] | None


class Outbox:
    """Sends from a thread of its own, so that a step does not wait for JSON and the socket.

    Parameters
    ----------
    sock : socket
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._waiting: Queue[Told] = Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._send, name="outbox", daemon=True)
        self._thread.start()

    def event(self, number: int, event: Event) -> None:
        """Tell news of a request."""
        self._waiting.put((number, event))

    def tell(self, message: Message, raw: bytes = b"") -> None:
        """Tell something else."""
        self._waiting.put((message, raw))

    def failed(self, number: int, error: BaseException) -> None:
        """Tell that a request cannot be answered."""
        self.tell({"tell": "failed", "id": number, "error": error_plain(error)})

    def close(self) -> None:
        """Send what waits, as far as somebody reads it."""
        self._waiting.put(None)
        self._thread.join(_FLUSH_SECONDS)

    def _send(self) -> None:
        try:
            while (first := self._waiting.get()) is not None:
                parts, more = [_packed(first)], True
                while more:
                    told = self._next()
                    more = told is not None
                    parts += [] if told is None else [_packed(told)]
                self._socket.sendall(b"".join(parts))
        except OSError:  # the server has gone, which the reader sees, too
            return

    def _next(self) -> Told:
        """Another one that waits; the end stays where it is."""
        if self._waiting.queue and self._waiting.queue[0] is not None:
            try:
                return self._waiting.get_nowait()
            except Empty:
                return None
        return None


def _packed(told: tuple[int, Event] | tuple[Message, bytes]) -> bytes:
    first, second = told
    if isinstance(second, Event):
        return packed({"tell": "event", "id": first, "event": event_plain(second)})
    assert isinstance(first, dict)
    return packed(first, second)


class Posted(Mailbox):
    """Sends events on, and keeps none.

    Parameters
    ----------
    number : int
        Of the request, as the server counts.
    choices : int
    outbox : Outbox
    """

    def __init__(self, number: int, choices: int, outbox: Outbox) -> None:
        super().__init__(choices)
        self._number = number
        self._outbox = outbox

    def put(self, event: Event) -> None:
        """Send an event; nothing behind the end."""
        if self.ended:
            return
        self._left -= event.finish is not None
        self._outbox.event(self._number, event)

    def fail(self, error: Exception) -> None:
        """End with an error, unless it has ended."""
        if not self.ended:
            self.error = error
            self._outbox.failed(self._number, error)
