"""What streams are made of: Ollama's lines, and events of OpenAI's and Anthropic's clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def head(name: str) -> dict[str, Any]:
    """What Ollama's lines begin with."""
    return {"model": name, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def line_of(made: Mapping[str, Any]) -> bytes:
    """A line of JSON."""
    return json.dumps(made).encode() + b"\n"


def failed_line(status: int, message: str) -> bytes:
    """The last line where a stream fails."""
    return line_of({"error": message, "status": status})


def event_of(data: Mapping[str, Any]) -> bytes:
    """An event that has its type in its data, and as its name."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def data_of(data: Mapping[str, Any]) -> bytes:
    """An event of data alone."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def dumped(arguments: Mapping[str, Any]) -> str:
    """Arguments of a call as text."""
    return json.dumps(dict(arguments))
