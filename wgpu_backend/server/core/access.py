"""Access control: who may call, how much they may send, and how long they may take."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import sys
import uuid
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wgpu_backend.server.core.errors import get_api, make_error_body
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.request_log import get_record
from wgpu_backend.server.core.state import Settings
from wgpu_backend.server.core.streaming import Sender

# Preflights need not list HEAD.
_METHODS = "GET, POST, DELETE, OPTIONS"
_HEADERS = "Authorization, Content-Type, X-Api-Key, User-Agent"
# Bytes; the limit that h11 has for headers that come in pieces.
_MAX_HEADERS = 64 << 10
# Served without a key, so that probes work.
_OPEN = ("/", "/health", "/v1/health")
# The page prompts for the key itself.
_PAGE = "/page/"
# A preflight from an unknown origin gets this header alone, which grants nothing.
_VARIES = (("vary", "Origin"),)
# Headers in which the SDKs look for an id.
_NUMBERS = {"OpenAI": "x-request-id", "Anthropic": "request-id"}
# The beginning of an origin with a numeric address.
_NUMERIC = re.compile(r"[a-z][a-z0-9+.-]*://(\d{1,3}\.)+\d{0,3}")
_REST = re.compile(r"[\d.]*(:\d*)?")
LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")


class AccessControl:
    """Access control: refuses foreign and oversized requests before they are read.

    A foreign page can make a browser call this machine by a name of its own (DNS rebinding), or
    across origins. So the host name and the origin are checked. Blobs may be of any size.

    Parameters
    ----------
    app : callable
        The application for requests that pass.
    apis : mapping of str to str
        The API whose error bodies a path uses, see `Endpoint.api`.
    """

    def __init__(self, app: ASGIApp, settings: Settings, apis: Mapping[str, str]) -> None:
        self._app = app
        self._apis = apis
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        # ASGI's lifespan messages have no headers.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _split_target(scope)
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        try:
            _require_short(scope)
            host, name = self._require_host(headers)
            known = not origin or self._is_known(origin, host, name)
            # Browsers send preflights without the key, so this comes before the check of the key.
            if scope["method"] == "OPTIONS" and origin:
                requested = headers.get("access-control-request-headers", "")
                await _send_answer(
                    send, 200, b"", _make_preflight_headers(origin, requested) if known else _VARIES
                )
                return
            if not known:
                raise RequestError(403, f"origin {origin[:60]!r} may not call this server")
            scope = self._strip_prefix(scope)
            self._require_key(headers, scope["path"])
            limited = self._limit_body(headers, scope, receive)
        except RequestError as error:
            api = self._get_api(scope)
            get_record().reason = str(error)
            body = json.dumps(make_error_body(api, error.status, str(error))).encode()
            extra = (*_make_refusal_headers(error.status, origin), *_make_id_header(api))
            await _send_answer(send, error.status, body, extra)
            return
        extra = (*_make_cors_headers(origin), *_make_id_header(self._get_api(scope)))
        if "transfer-encoding" in headers and "content-length" in headers:
            # One of the two may be forged (request smuggling); RFC 9112, 6.1 requires to close.
            extra = (*extra, ("connection", "close"))
        await self._forward(scope, limited, Sender(send, extra, self._settings.pause_seconds))

    async def _forward(self, scope: Scope, receive: Receive, sending: Sender) -> None:
        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            # The shutdown's grace period is over.
            # The status was sent; a second one would break the answer.
            if sending.begun:
                raise
            body = json.dumps(
                make_error_body(self._get_api(scope), 503, "the server is shutting down")
            ).encode()
            await _send_answer(sending, 503, body)
        except Exception:
            # After a timeout the client no longer reads, so the error is of no use.
            if not sending.late:
                raise
        finally:
            sending.close()

    def _get_api(self, scope: Scope) -> str:
        """Return the API of a request."""
        path = scope["path"]
        return self._apis.get(path) or get_api(path)

    def _strip_prefix(self, scope: Scope) -> Scope:
        """Return the request without the path prefix, for servers that share an address."""
        prefix, path = self._settings.prefix, scope["path"]
        if not prefix:
            return scope
        if path != prefix and not path.startswith(f"{prefix}/"):
            raise RequestError(404, f"path: {path[:60]!r}, needs the prefix {prefix}")
        return {**scope, "path": path.removeprefix(prefix) or "/"}

    def _require_host(self, headers: Headers) -> tuple[str, str]:
        """Return the host of a request, with its port and without."""
        hosts, host = self._settings.hosts, headers.get("host", "")
        # An IPv6 address in brackets has colons of its own.
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if hosts and name.lower() not in hosts:
            raise RequestError(403, f"host {host[:60]!r} is not one of this server's names")
        return host, name

    def _is_known(self, origin: str, host: str, name: str) -> bool:
        return _is_allowed(origin, self._settings.origins) or self._is_own(origin, host, name)

    def _is_own(self, origin: str, host: str, name: str) -> bool:
        """Return whether a request comes from this server's own page.

        A foreign page may reach this machine by a name of its own (DNS rebinding), but not by an
        address, and it has no key.
        """
        own = origin in (f"http://{host}", f"https://{host}")
        return own and (bool(self._settings.api_keys) or _is_address(name))

    def _require_key(self, headers: Headers, path: str) -> None:
        keys = self._settings.api_keys
        if not keys or path in _OPEN or path.startswith(_PAGE):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = headers.get("x-api-key") or (token if scheme.lower() == "bearer" else "")
        # Compare with every key in constant time, so that timing does not reveal any.
        # Header values were decoded as ISO 8859-1; encoding restores the bytes that were sent.
        bytes_given = given.encode("latin-1")
        if not sum(
            hmac.compare_digest(bytes_given, each) for key in keys for each in _encode_key(key)
        ):
            raise RequestError(401, "the API key is missing or wrong")

    def _limit_body(self, headers: Headers, scope: Scope, receive: Receive) -> Receive:
        limit = self._settings.max_body
        if scope["path"].startswith("/api/blobs/"):
            # Models are uploaded as blobs, in pieces, so their size is bounded by the disk alone.
            limit = sys.maxsize
        length = headers.get("content-length", "0")
        # The header alone is enough to refuse a body, before any of it is read.
        if not length.isdecimal() or int(length) > limit:
            raise RequestError(413, f"body: {length[:20]} bytes, needs at most {limit}")
        seen, whole = 0, False

        async def receive_counted() -> Message:
            nonlocal seen, whole
            # The time limit applies to the body only: after it, `receive` waits for the disconnect.
            message = await receive() if whole else await self._receive_in_time(receive)
            whole = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > limit:
                raise RequestError(413, f"body: more than {limit} bytes")
            return message

        return receive_counted

    async def _receive_in_time(self, receive: Receive) -> Message:
        """Return the next piece of a body."""
        most = self._settings.pause_seconds
        try:
            return await asyncio.wait_for(receive(), most)
        except TimeoutError:
            raise RequestError(408, f"body: nothing came for {most:g} seconds") from None


def _require_short(scope: Scope) -> None:
    """Refuse long headers that arrived at once: h11 limits only those that arrive in pieces."""
    count = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    count += sum(len(name) + len(value) for name, value in scope["headers"])
    if count > _MAX_HEADERS:
        raise RequestError(431, f"headers: {count} bytes, needs at most {_MAX_HEADERS}")


def _split_target(scope: Scope) -> Scope:
    """Split an absolute URL in the path's place into host and path, as proxies receive it.

    The host of the URL takes precedence over the header's, so it is the one to check.
    """
    target: bytes = scope.get("raw_path") or b""
    scheme, found, rest = target.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        return scope
    host, _, path = rest.partition(b"/")
    headers = [(b"host", host), *(each for each in scope["headers"] if each[0] != b"host")]
    path = b"/" + path
    return {**scope, "headers": headers, "raw_path": path, "path": unquote(path)}


def _encode_key(key: str) -> set[bytes]:
    """Return the bytes that clients may send for a key: UTF-8, and ISO 8859-1 where possible."""
    latin = {key.encode("latin-1")} if all(ord(letter) < 256 for letter in key) else set[bytes]()
    return latin | {key.encode()}


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_allowed(origin: str, origins: Iterable[str]) -> bool:
    if "*" in origins:
        return True
    # An allowed origin without a port stands for all ports.
    bare = origin.rpartition(":")[0] if origin.rpartition(":")[2].isdecimal() else origin
    return any(_matches(found, each) for each in origins for found in (origin, bare))


def _matches(origin: str, allowed: str) -> bool:
    """Return whether an origin matches an allowed one, in which a ``*`` stands for any text.

    After a partial address, the star stands only for digits, dots and a port: ``http://10.*`` must
    not match ``http://10.evil.example``.
    """
    before, star, behind = allowed.partition("*")
    if not star:
        return origin == allowed
    rest = origin.removeprefix(before)
    if not (origin.startswith(before) and rest.endswith(behind)):
        return False
    numeric = _NUMERIC.fullmatch(before) is not None
    return not numeric or _REST.fullmatch(rest.removesuffix(behind)) is not None


def _make_id_header(api: str) -> tuple[tuple[str, str], ...]:
    """Return a header with an id of the answer, for APIs whose clients log it."""
    return ((_NUMBERS[api], f"req_{uuid.uuid4().hex}"),) if api in _NUMBERS else ()


def _make_cors_headers(origin: str) -> tuple[tuple[str, str], ...]:
    if not origin:
        return ()
    credentials = ("access-control-allow-credentials", "true")
    return (("access-control-allow-origin", origin), credentials, *_VARIES)


def _make_preflight_headers(origin: str, headers: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of a preflight answer; it allows every header that the page names."""
    return (
        *_make_cors_headers(origin),
        ("access-control-allow-methods", _METHODS),
        ("access-control-allow-headers", headers or _HEADERS),
        ("access-control-max-age", "86400"),
    )


def _make_refusal_headers(status: int, origin: str) -> tuple[tuple[str, str], ...]:
    # No header allows it, so a foreign page cannot read the refusal either.
    if status == 403:
        return ()
    return (
        (*_make_cors_headers(origin), ("www-authenticate", "Bearer"))
        if status == 401
        else _make_cors_headers(origin)
    )


async def _send_answer(
    send: Send, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()
) -> None:
    found: list[Any] = [(b"content-type", b"application/json")] if body else []
    found += [(name.title().encode(), value.encode()) for name, value in headers]
    found.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": body})
