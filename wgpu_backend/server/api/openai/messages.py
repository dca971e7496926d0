"""Messages of OpenAI's chats as templates read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wgpu_backend.server.core.media import join_parts, make_part, make_video
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.text.output_parsers.calls import decode_json

# Template names of OpenAI's roles.
_ROLES = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
    "tool": "tool", "function": "tool",
}  # fmt: skip


def convert_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message for templates: contents become texts, arguments of calls become objects.

    Parts of text are joined by line breaks, as llama-server joins them.

    Raises
    ------
    RequestError
        Its role is unknown to templates, or it has parts that they cannot read.
    """
    made = {key: value for key, value in message.items() if value is not None}
    if "role" in made:
        made["role"] = _map_role(made["role"])
    if isinstance(made.get("content"), list):
        parts = cast("list[object]", made["content"])
        thoughts = [_read_thought(part) for part in parts if _get_kind(part) in _THOUGHTS]
        parts = [part for part in parts if _get_kind(part) not in _THOUGHTS]
        made["content"] = join_parts([*map(_read_part, parts)])
        if thoughts and made.get("role") == "assistant":
            made.setdefault("reasoning_content", "\n".join(thoughts))
    made.setdefault("content", "")
    if "tool_calls" in made:
        made["tool_calls"] = _convert_calls(made["tool_calls"])
    return made


def _map_role(given: object) -> str:
    """Return the template's name of a role; templates would silently drop others."""
    if not isinstance(given, str) or given not in _ROLES:
        raise RequestError(400, f"messages: role {str(given)[:40]!r}, needs {', '.join(_ROLES)}")
    return _ROLES[given]


# Kinds of parts with reasoning in Mistral's and Anthropic's messages.
_THOUGHTS = ("thinking", "reasoning")


def _get_kind(part: object) -> object:
    """Return the type of a part, by its key if it has none, as vLLM finds it."""
    given = cast("dict[str, Any]", part if isinstance(part, dict) else {})
    known = next((key for key in ("text", "image_url") if key in given), None)
    return given.get("type", known)


def _read_thought(part: object) -> str:
    """Return the text of a part with reasoning: a text, or Mistral's list of parts."""
    given = cast("dict[str, Any]", part)
    found = given.get(str(given.get("type")), given.get("text"))
    items = cast("list[object]", found) if isinstance(found, list) else [found]
    return "".join(text for text in map(_get_text, items) if isinstance(text, str))


def _get_text(part: object) -> object:
    return cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part


def _read_part(part: object) -> str | dict[str, Any]:
    if isinstance(part, str):
        return part
    kind = _get_kind(part)
    given = cast("dict[str, Any]", part if isinstance(part, dict) else {})
    match kind:
        case "text" | "refusal":
            return str(given.get(str(kind)) or "")
        case "input_text" | "output_text":
            return str(given.get("text") or "")
        case "image_url" | "input_image":
            found = given.get("image_url")
            url = cast("dict[str, Any]", found).get("url") if isinstance(found, dict) else found
            return make_part("messages: image_url", "image", url)
        case "input_audio" | "audio_url":
            found = given.get(str(kind))
            key = "data" if kind == "input_audio" else "url"
            data = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else found
            return make_part(f"messages: {kind}", "audio", data)
        case "video_url" | "input_video" | "video" if kind in given:
            return read_video("messages", given, str(kind))
        case _:
            needed = "text, image_url, video_url or input_audio"
            raise RequestError(400, f"messages: a part of type {str(kind)[:40]!r}, needs {needed}")


def read_video(where: str, part: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a part with a video.

    The forms are ``video_url`` as in vLLM, llama-server's ``input_video``, and a list of pictures
    as ``video``, as Qwen's servers have it. Each may have ``fps``.
    """
    given = part[kind]
    fields = cast("dict[str, Any]", given if isinstance(given, dict) else {})
    source = fields.get("url", fields.get("data")) if isinstance(given, dict) else given
    return make_video(f"{where}: {kind}", source, part.get("fps", fields.get("fps")))


def _convert_calls(calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError(400, f"messages: tool_calls: {str(calls)[:40]!r}, needs a list")
    return [_convert_call(call) for call in cast("list[object]", calls)]


def _convert_call(call: Any) -> dict[str, Any]:  # noqa: ANN401
    try:
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            function["arguments"] = parse_arguments(function["arguments"])
        return {**call, "function": function}
    except (TypeError, KeyError, ValueError):
        raise RequestError(400, "messages: a tool call has no function with arguments") from None


def parse_arguments(text: str) -> Mapping[str, Any] | str:
    """Parse the arguments of an earlier call; keep the text if it is not an object."""
    try:
        value = decode_json(text or "{}")
    except (ValueError, RecursionError):
        return text
    return cast("dict[str, Any]", value) if isinstance(value, dict) else text


def place_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Move each system message into the next user message.

    For templates without system messages, which would drop them silently; llama-server does the
    same. Without a user message after it, the system text becomes one.
    """
    found: list[Mapping[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "system" and isinstance(content, str):
            waiting.append(content)
            continue
        if waiting:
            said = "\n".join(waiting)
            waiting.clear()
            if message.get("role") == "user" and isinstance(content, str):
                joined = f"{said}\n{content}" if content else said
                found.append({**message, "content": joined})
                continue
            if message.get("role") == "user" and isinstance(content, list):
                parts = cast("list[object]", content)
                found.append({**message, "content": [{"type": "text", "text": said}, *parts]})
                continue
            found.append({"role": "user", "content": said})
        found.append(message)
    if waiting:
        found.append({"role": "user", "content": "\n".join(waiting)})
    return found


def get_begun_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that the answer continues: a last message of the assistant, else empty."""
    none: Mapping[str, Any] = {}
    last = messages[-1] if len(messages) > 1 else none
    content = last.get("content")
    if last.get("role") != "assistant" or not isinstance(content, str) or last.get("tool_calls"):
        return ""
    return content
