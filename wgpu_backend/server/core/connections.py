"""Connections of a server, with a time limit for their headers."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
# Bytes that the system buffers for a client that does not read; the default is megabytes, which
# would hide that it lags.
UNSENT = 1 << 16


class TimelyProtocol(H11Protocol):
    """HTTP over h11, which limits the bytes of headers; this class limits their time.

    It also writes the pieces of a stream without h11, which takes longer for them than the rest of
    the server. h11 writes what is before and after them.
    """

    _late: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **named: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **named)
        self._answer = self.app
        self.app = self._run

    async def _run(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Run the application, with a fast path for the pieces of streams."""
        is_chunked = False

        async def send_quickly(message: Any) -> None:  # noqa: ANN401
            nonlocal is_chunked
            kind = message["type"]
            if kind == "http.response.start":
                is_chunked = _is_chunked(scope, message)
            elif is_chunked and kind == "http.response.body" and message.get("more_body", False):
                body = message["body"]
                # After the end of the connection, writing does nothing.
                if body and not self.flow.write_paused:
                    self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
                    return
            await send(message)

        await self._answer(scope, receive, send_quickly)

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401
        """Start the timer of a new connection."""
        super().connection_made(transport)
        # Missing on Windows.
        bound = getattr(socket, "TCP_NOTSENT_LOWAT", None)
        # Unix sockets have no TCP options.
        with suppress(OSError):
            if bound is not None:
                opened = transport.get_extra_info("socket")
                opened.setsockopt(socket.IPPROTO_TCP, bound, UNSENT)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Handle some bytes of a request."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        elif self._late is not None:
            self._late.cancel()
            self._late = None

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._late = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)


def _is_chunked(scope: Any, start: Any) -> bool:  # noqa: ANN401
    """Return whether h11 sends the body of an answer in chunks, each with its length."""
    names = {name.lower() for name, _ in start["headers"]}
    has_length = bool(names & {b"content-length", b"transfer-encoding"})
    return scope["http_version"] == "1.1" and scope["method"] != "HEAD" and not has_length
