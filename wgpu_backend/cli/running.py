"""`wgpu-backend ps` and `stop`: requests to a running server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from wgpu_backend.cli.console import answer, human_bytes, note, print_table
from wgpu_backend.cli.options import (
    Debug,
    Json,
    StoredName,
)
from wgpu_backend.cli.serve.listening import (
    DEFAULT_HOST,
    KEY_VARIABLE,
    address,
    is_local,
    scheme_of,
)
from wgpu_backend.errors import ModelNotFound, StoreError

_REACHED_AT = {"0.0.0.0": DEFAULT_HOST, "[::]": "[::1]"}  # servers that listen everywhere


def ask(method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Send a request to the running server, and return its JSON answer.

    Raises
    ------
    ModelNotFound
        The server does not have the model.
    StoreError
        No server runs, or it reports an error.
    """
    import httpx2

    server, proxied = server_address()
    url = f"{server}{path}"
    try:
        response = httpx2.request(
            method, url, json=body, headers=server_headers(), timeout=60, trust_env=proxied
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
    key = os.environ.get(KEY_VARIABLE, "").partition(",")[0].strip()
    # In bytes: a key may have any letters.
    return {b"Authorization": f"Bearer {key}".encode()} if key else {}


def server_address() -> tuple[str, bool]:
    """Return the server's URL, and whether to use a proxy: not for this machine."""
    named = os.environ.get("OLLAMA_HOST")
    host, port = address(named)
    host = _REACHED_AT.get(host, host)
    scheme = "https" if scheme_of(named)[0] == "https" else "http"
    return f"{scheme}://{host}:{port}", not is_local(host)


def print_running(*, as_json: bool) -> None:
    """Print the models that the server has loaded."""
    models = cast("list[dict[str, Any]]", ask("GET", "/api/ps")["models"])
    if as_json:
        answer(json.dumps(models, indent=2) + "\n")
        return
    rows = [
        (
            str(each["name"]),
            str(each["digest"])[:12],
            human_bytes(int(each["size"])),
            str(each["context_length"]),
            _until(str(each["expires_at"])),
        )
        for each in models
    ]
    if not rows:
        note("no model is loaded")
        return
    print_table(("name", "id", "size", "context", "until"), rows, right=("size", "context"))


def _until(text: str) -> str:
    left = (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()
    return "for ever" if left > 1e9 else f"{max(0, round(left))} s from now"


def stop_model(name: str) -> None:
    """Make the server unload a model."""
    ask("POST", "/api/generate", {"model": name, "keep_alive": 0, "stream": False})
    note(f"stopped {name}")


def ps(as_json: Json = False, debug: Debug = False) -> None:
    """List the models that a running server has loaded."""
    print_running(as_json=as_json)


def stop(name: StoredName, debug: Debug = False) -> None:
    """Unload a model from a running server."""
    stop_model(name)
