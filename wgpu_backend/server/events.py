"""Server-sent events, as OpenAI's and Anthropic's clients read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def event_of(data: Mapping[str, Any]) -> bytes:
    """An event that has its type in its data, and as its name."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def dumped(arguments: Mapping[str, Any]) -> str:
    """Arguments of a call as text."""
    return json.dumps(dict(arguments))
