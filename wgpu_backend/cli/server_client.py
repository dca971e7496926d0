"""Requests to a running server, and its address in `OLLAMA_HOST`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, cast

from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.errors import ModelNotFound, StoreError

KEY_VARIABLE = "WGPU_BACKEND_API_KEY"
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 11434
_SCHEME_PORTS = {"http": 80, "https": 443}
# Checked before int(), which raises for thousands of digits.
_PORT_DIGITS = 5
# A server that listens at all addresses is reached at the loopback address.
_REACHED_AT = {"0.0.0.0": DEFAULT_HOST, "[::]": "[::1]"}
_TIMEOUT_SECONDS = 60


def request_json(
    method: str, path: str, body: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Send a request to the running server, and return its JSON answer.

    Raises
    ------
    ModelNotFound
        The server does not have the model.
    StoreError
        No server runs, or it reports an error.
    """
    import httpx2

    server, proxied = server_url()
    url = f"{server}{path}"
    try:
        response = httpx2.request(
            method,
            url,
            json=body,
            headers=server_headers(),
            timeout=_TIMEOUT_SECONDS,
            trust_env=proxied,
        )
        found = cast("dict[str, Any]", response.json())
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        raise StoreError(f"{url}: no server answers; `wgpu-backend serve` starts one") from None
    if response.status_code != 200:
        kind = ModelNotFound if response.status_code == 404 else StoreError
        raise kind(f"{url}: {found.get('error', response.status_code)}")
    return found


def server_headers() -> dict[bytes, bytes]:
    """Return the header that signs in, if ``WGPU_BACKEND_API_KEY`` has a key."""
    # The server takes a list of keys from the same variable; any of them signs in.
    key = os.environ.get(KEY_VARIABLE, "").partition(",")[0].strip()
    # In bytes: a key may have any letters, and HTTP clients encode text as ASCII.
    return {b"Authorization": f"Bearer {key}".encode()} if key else {}


def server_url() -> tuple[str, bool]:
    """Return the server's URL, and whether to use a proxy: not for this machine."""
    text = os.environ.get("OLLAMA_HOST")
    host, port = parse_address(text)
    host = _REACHED_AT.get(host, host)
    scheme = "https" if _split_scheme(text)[0] == "https" else "http"
    return f"{scheme}://{host}:{port}", not is_local(host)


def parse_address(text: str | None) -> tuple[str, int]:
    """Parse ``OLLAMA_HOST``: ``host``, ``host:port``, ``:port``, a URL, or an address.

    A URL without a port has its scheme's port, as in Ollama; IPv6 addresses get brackets.

    Raises
    ------
    UsageError
        The port is invalid.
    """
    scheme, rest = _split_scheme(text)
    default = _SCHEME_PORTS.get(scheme, DEFAULT_PORT)
    # An IPv6 address without brackets has colons, but no port.
    if _is_address(rest):
        return bracket_ipv6(rest), default
    host, colon, port = rest.rpartition(":")
    if not colon:
        host, port = rest, str(default)
    if not port.isdecimal() or len(port) > _PORT_DIGITS or int(port) >= 1 << 16:
        raise UsageError(f"OLLAMA_HOST: {brief(rest)}, needs host:port")
    return bracket_ipv6(host) or DEFAULT_HOST, int(port)


def _split_scheme(text: str | None) -> tuple[str, str]:
    """Split ``OLLAMA_HOST`` into the scheme, which may be empty, and the rest, without quotes."""
    # Windows' `set OLLAMA_HOST="..."` keeps the quotes; Ollama strips them as well.
    text = (text or "").strip().strip("\"'").strip()
    scheme, separator, rest = text.partition("://")
    return (scheme.lower(), rest.rstrip("/")) if separator else ("", text.rstrip("/"))


def bracket_ipv6(host: str) -> str:
    """Put an IPv6 address in brackets, as URLs need it."""
    bare = host.strip("[]")
    return f"[{bare}]" if ":" in bare and _is_address(bare) else host


def is_local(host: str) -> bool:
    """Return whether a host is a loopback address of this machine."""
    with suppress(ValueError):
        return ip_address(host.strip("[]")).is_loopback
    return host.lower() == "localhost"


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ip_address(host.strip("[]"))
        return True
    return False
