"""`wgpu-backend ps` and `stop`: the models that a running server has loaded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

from wgpu_backend.cli.console import human_bytes, note, print_table, print_text
from wgpu_backend.cli.options import Debug, Json, StoredName
from wgpu_backend.cli.server_client import request_json


def ps(as_json: Json = False, debug: Debug = False) -> None:
    """List the models that a running server has loaded."""
    models = cast("list[dict[str, Any]]", request_json("GET", "/api/ps")["models"])
    if as_json:
        print_text(json.dumps(models, indent=2) + "\n")
        return
    rows = [
        (
            str(each["name"]),
            str(each["digest"])[:12],
            human_bytes(int(each["size"])),
            format_processor(int(each["size"]), int(each.get("size_vram", each["size"]))),
            str(each["context_length"]),
            _format_expiry(str(each["expires_at"])),
        )
        for each in models
    ]
    if not rows:
        note("no model is loaded")
        return
    columns = ("name", "id", "size", "processor", "context", "until")
    print_table(columns, rows, right=("size", "context"))


def format_processor(size: int, on_gpu: int) -> str:
    """Return where a model is, as Ollama writes it: ``100% GPU``, ``48%/52% CPU/GPU``."""
    share = round(100 * on_gpu / size) if size else 0
    # Neither is 0 % while it has a part.
    share = min(max(share, 1), 99) if 0 < on_gpu < size else share
    if share in (0, 100):
        return "100% GPU" if share else "100% CPU"
    return f"{100 - share}%/{share}% CPU/GPU"


def _format_expiry(text: str) -> str:
    left = (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()
    # The server caps finite times at 1e9 s, 32 years; "for ever" is centuries ahead.
    return "for ever" if left > 1e9 else f"{max(0, round(left))} s from now"


def stop(name: StoredName, debug: Debug = False) -> None:
    """Unload a model from a running server."""
    request_json("POST", "/api/generate", {"model": name, "keep_alive": 0, "stream": False})
    note(f"stopped {name}")
