"""Messages of OpenAI's chats as templates read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from wgpu_backend.server.wanted import RequestError


def turn_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates read it: contents as texts, arguments of calls as objects."""
    made = {key: value for key, value in message.items() if value is not None}
    if isinstance(made.get("content"), list):
        made["content"] = "".join(map(_part, cast("list[object]", made["content"])))
    made.setdefault("content", "")
    if calls := made.get("tool_calls"):
        made["tool_calls"] = [_given_call(call) for call in calls]
    return made


def _part(part: object) -> str:
    given = cast("dict[str, object]", part if isinstance(part, dict) else {})
    if given.get("type") != "text":
        raise RequestError(400, "messages: only parts of type text are supported")
    return str(given.get("text", ""))


def _given_call(call: Any) -> dict[str, Any]:  # noqa: ANN401
    try:
        function = dict(call["function"])
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            function["arguments"] = json.loads(arguments or "{}")
        return {**call, "function": function}
    except (TypeError, KeyError, ValueError):
        raise RequestError(400, "messages: a tool call has no function with arguments") from None


def begun_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """Text that the answer continues: of a last message that is the assistant's; else empty."""
    none: Mapping[str, Any] = {}
    last = messages[-1] if len(messages) > 1 else none
    content = last.get("content")
    if last.get("role") != "assistant" or not isinstance(content, str) or last.get("tool_calls"):
        return ""
    return content
