"""Sending of answers, with a timeout for slow readers."""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Awaitable, Generator
from functools import partial
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from wgpu_backend.server.core.request_log import get_record

# Bytes that wait for the next write; with more, the next piece waits for the client.
_MOST_HELD = 1 << 16


class Sender:
    """The sender of an answer: it adds headers, and gives up when the client stops reading.

    A write to a socket costs more than all other work for a token. So pieces of a stream that are
    ready at the same time go out in one write. Most writes do not wait, so they need no task and
    no timer; these are made once a write has to wait for the client.

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
        # Pieces for the next write, which follows in the same pass of the event loop.
        self._held = bytearray()
        self._next: asyncio.Handle | None = None
        # A write that waits for the client, and the error of one that did not wait.
        self._writing: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self.late = self.begun = False

    async def __call__(self, message: Message) -> None:
        """Send an ASGI message; pieces of a stream are sent a moment later.

        Raises
        ------
        TimeoutError
            The client has not read what was sent before.
        """
        is_piece = message["type"] == "http.response.body" and message.get("more_body", False)
        if self._writing is not None:
            writing, self._writing = self._writing, None
            # The client lags.
            get_record().lags |= not writing.done()
            await writing
        if self._error is not None:
            raise self._error
        if is_piece and len(self._held) < _MOST_HELD:
            self._hold(message.get("body", b""))
            return
        if (held := self._take_held()) is not None:
            await self._send_in_time(held)
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
        self._take_held()
        if self._writing is not None:
            self._writing.cancel()

    def _hold(self, body: bytes) -> None:
        self._held += body
        if self._next is None:
            # A coroutine runs in one context from its beginning to its end.
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            self._next = loop.call_soon(self._write, loop, context, context=context)

    def _take_held(self) -> Message | None:
        """Return the message of the pieces that are held, if there are any."""
        if self._next is None:
            return None
        self._next.cancel()
        self._next = None
        body = bytes(self._held)
        self._held.clear()
        return {"type": "http.response.body", "body": body, "more_body": True}

    def _write(self, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        """Write the pieces that are held; a task waits if the client lags."""
        message = self._take_held()
        if message is None:
            return
        rest = self._send(message).__await__()
        try:
            waits_for = next(rest)
        except StopIteration:
            return
        except Exception as error:
            self._error = error
            return
        waiting = self._in_time(_resume(waits_for, rest))
        self._writing = loop.create_task(waiting, context=context)
        # The next message raises its error; without one, the client is gone. Reading it here
        # avoids a warning.
        self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _send_in_time(self, message: Message) -> None:
        await self._in_time(self._send(message))

    async def _in_time(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._most):
                await sending
        except TimeoutError:
            self.late = True
            raise


@types.coroutine
def _resume(first: object, rest: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
    """Continue a coroutine that has already waited for something, in the current task."""
    waits_for = first
    while True:
        try:
            found = yield waits_for
        except BaseException as error:
            step = partial(rest.throw, error)
        else:
            step = partial(rest.send, found)
        try:
            waits_for = step()
        except StopIteration:
            return
