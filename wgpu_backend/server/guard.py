"""Who may call, and how much they may send."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wgpu_backend.server.failures import api_of, error_body
from wgpu_backend.server.serving_state import Settings
from wgpu_backend.server.wanted import RequestError

_METHODS = "GET, POST, DELETE, HEAD, OPTIONS"
_OPEN = ("/", "/health")  # without a key
LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")


class Guard:
    """Refuses requests of strangers, and those that are too large, before anything reads them.

    A page elsewhere can make a browser call this machine by a name of its own (DNS rebinding), or
    across origins; so the host's name is checked, and the origin. Blobs may be of any size.

    Parameters
    ----------
    app : callable
        Gets what passes.
    settings : Settings
    apis : mapping of str to str
        Whose errors the answers to a path are, see `Endpoint.api`.
    """

    def __init__(self, app: ASGIApp, settings: Settings, apis: Mapping[str, str]) -> None:
        self._app = app
        self._apis = apis
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        try:
            self._require_known(headers, origin)
            if scope["method"] == "OPTIONS" and origin:
                await _answer(send, 204, b"", _cors(origin, preflight=True))
                return
            self._require_key(headers, scope["path"])
            limited = self._limited(headers, scope, receive)
        except RequestError as error:
            path = scope["path"]
            told = error_body(self._apis.get(path) or api_of(path), error.status, str(error))
            body = json.dumps(told).encode()
            await _answer(send, error.status, body, _cors(origin) if error.status != 403 else ())
            return
        await self._app(scope, limited, _with_headers(send, _cors(origin)))

    def _require_known(self, headers: Headers, origin: str) -> None:
        hosts, origins = self._settings.hosts, self._settings.origins
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if hosts and name.lower() not in hosts:
            raise RequestError(403, f"host {host[:60]!r} is none of this server's names")
        if origin and "*" not in origins and not _allowed(origin, origins):
            raise RequestError(403, f"origin {origin[:60]!r} may not call this server")

    def _require_key(self, headers: Headers, path: str) -> None:
        key = self._settings.api_key
        if not key or path in _OPEN:
            return
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise RequestError(401, "the API key is missing or wrong")

    def _limited(self, headers: Headers, scope: Scope, receive: Receive) -> Receive:
        limit = self._settings.max_body
        if scope["path"].startswith("/api/blobs/"):
            return receive
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise RequestError(413, f"body: {length[:20]} bytes, needs at most {limit}")
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise RequestError(413, f"body: more than {limit} bytes")
            return message

        return counted


def _allowed(origin: str, origins: Iterable[str]) -> bool:
    bare = origin.rpartition(":")[0] if origin.rpartition(":")[2].isdecimal() else origin
    return origin in origins or bare in origins


def _cors(origin: str, *, preflight: bool = False) -> tuple[tuple[str, str], ...]:
    if not origin:
        return ()
    found = (("access-control-allow-origin", origin), ("vary", "Origin"))
    if not preflight:
        return found
    return (
        *found,
        ("access-control-allow-methods", _METHODS),
        ("access-control-allow-headers", "Authorization, Content-Type, X-Api-Key, User-Agent"),
        ("access-control-max-age", "86400"),
    )


def _with_headers(send: Send, extra: tuple[tuple[str, str], ...]) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in extra:
                headers[name] = value
        await send(message)

    return with_headers


async def _answer(
    send: Send, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()
) -> None:
    found: list[Any] = [(b"content-type", b"application/json")] if body else []
    found += [(name.encode(), value.encode()) for name, value in headers]
    found.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": body})
