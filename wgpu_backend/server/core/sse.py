"""Pieces of streams: Ollama's lines, and events for clients of OpenAI and Anthropic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def make_head(name: str) -> dict[str, Any]:
    """Return the first fields of Ollama's lines."""
    # As Go writes UTC.
    return {"model": name, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def encode_line(made: Mapping[str, Any]) -> bytes:
    """Encode a line of JSON."""
    return json.dumps(made).encode() + b"\n"


def make_error_line(status: int, message: str) -> bytes:
    """Return the last line of a stream that fails."""
    return encode_line({"error": message, "status": status})


def encode_event(data: Mapping[str, Any]) -> bytes:
    """Encode an event whose name is the type in its data."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def encode_data(data: Mapping[str, Any]) -> bytes:
    """Encode an event without a name."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def dump_arguments(arguments: Mapping[str, Any]) -> str:
    """Encode the arguments of a call as text."""
    return json.dumps(dict(arguments))
