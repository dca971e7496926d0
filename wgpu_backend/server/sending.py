"""How an answer's pieces go out."""

from __future__ import annotations

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

_INTERVAL = 0.01  # seconds; what comes sooner behind a write goes out with what follows it
_MOST_HELD = 1 << 16  # bytes


class Sending:
    """Sends an answer with some headers more, and gives up where nobody reads for some time.

    A write to a socket costs a server more than the text of a token: a small model that makes
    hundreds a second would wait for them. So pieces of a stream that come within a hundredth of a
    second go out in one write; the first goes at once.

    Parameters
    ----------
    send : callable
        Of ASGI.
    extra : tuple of (str, str)
        Headers.
    most : float
        Seconds that a client may take to read.

    Attributes
    ----------
    late : bool
        Whether it took longer.
    """

    def __init__(self, send: Send, extra: tuple[tuple[str, str], ...], most: float) -> None:
        self._send = send
        self._extra = extra
        self._most = most
        self._held = bytearray()
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self.late = False

    async def __call__(self, message: Message) -> None:
        """Send a message of ASGI, or hold a piece for a moment.

        Raises
        ------
        TimeoutError
            The client has not read what was sent before.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in self._extra:
                headers[name] = value
            await self._within(message)
            return
        self._held += message.get("body", b"")
        if not message.get("more_body", False):
            await self._write(more=False)
        elif asyncio.get_running_loop().time() >= self._due or len(self._held) >= _MOST_HELD:
            await self._write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._due, self._begin)

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().create_task(self._write())
        # The next message tells of its error; where none comes, nobody is left to be told.
        self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _write(self, *, more: bool = True) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        body = bytes(self._held)
        self._held.clear()
        self._due = asyncio.get_running_loop().time() + _INTERVAL
        await self._within({"type": "http.response.body", "body": body, "more_body": more})

    async def _within(self, message: Message) -> None:
        try:
            await asyncio.wait_for(self._send(message), self._most)
        except TimeoutError:
            self.late = True
            raise
