"""Sending of answers, with a timeout for slow readers."""

from __future__ import annotations

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from wgpu_backend.server.core.request_log import get_record

# Bytes that wait for the next write; with more, the next piece waits for the client.
_MOST_HELD = 1 << 16


class Sender:
    """The sender of an answer: it adds headers, and gives up when the client stops reading.

    A write to a socket costs more than all other work for a token. So pieces of a stream that are
    ready at the same time go out in one write.

    Parameters
    ----------
    send : callable
        ASGI's `send`.
    extra : tuple of (str, str)
        Headers.
    most : float
        Seconds that a client may take to read a piece.

    Attributes
    ----------
    late : bool
        Whether the client took longer.
    begun : bool
        Whether the answer was begun.
    """

    def __init__(self, send: Send, extra: tuple[tuple[str, str], ...], most: float) -> None:
        self._send = send
        self._extra = extra
        self._most = most
        # Pieces for the next write.
        self._held = bytearray()
        self._writing: asyncio.Task[None] | None = None
        self.late = self.begun = False

    async def __call__(self, message: Message) -> None:
        """Send an ASGI message; pieces of a stream are sent from a task.

        Raises
        ------
        TimeoutError
            The client has not read what was sent before.
        """
        is_piece = message["type"] == "http.response.body" and message.get("more_body", False)
        if self._writing is not None and not (is_piece and 0 < len(self._held) < _MOST_HELD):
            writing, self._writing = self._writing, None
            # The write has begun and is not done: the client lags.
            waits = not (self._held or writing.done())
            await writing
            get_record().lags |= waits
        if is_piece:
            self._hold(message.get("body", b""))
            return
        if message["type"] == "http.response.start":
            self.begun = True
            headers = MutableHeaders(scope=message)
            for name, value in self._extra:
                headers[name] = value
            # Title case, as in most servers: some clients compare names of headers by case.
            message["headers"] = [(name.title(), value) for name, value in message["headers"]]
        await self._send_in_time(message)

    def close(self) -> None:
        """Send nothing more."""
        if self._writing is not None:
            self._writing.cancel()

    def _hold(self, body: bytes) -> None:
        self._held += body
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
            # The next message raises its error; without one, the client is gone. Reading it here
            # avoids a warning.
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _write(self) -> None:
        body = bytes(self._held)
        self._held.clear()
        await self._send_in_time({"type": "http.response.body", "body": body, "more_body": True})

    async def _send_in_time(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._most):
                await self._send(message)
        except TimeoutError:
            self.late = True
            raise
