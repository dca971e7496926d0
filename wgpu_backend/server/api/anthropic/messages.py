"""Anthropic's messages as templates read conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.request_log import ignore
from wgpu_backend.server.core.sse import dumped

Turn = dict[str, Any]


def turns(fields: Fields, *, thinks: bool = False) -> list[Turn]:
    """Return the turns of a request; the last may begin the answer.

    Turns of the same role are merged, since templates expect roles to alternate.

    Parameters
    ----------
    thinks : bool
        Whether the model reasons, which it can only do before its answer begins.

    Raises
    ------
    RequestError
        A block is of a kind that no model here reads, or lacks what it needs.
    """
    found: list[Turn] = []
    if system := _text(fields.get("system", str, list), "system"):
        found.append({"role": "system", "content": system})
    names: dict[str, str] = {}
    for number, message in enumerate(fields.objects("messages")):
        found += _of_message(Fields(message, where=f"messages[{number}]."), names)
    found = _combined(found)
    if not fields.get("messages", list) or not found or found[-1].get("tool_calls"):
        raise RequestError(
            400, "messages: needs at least one, and behind calls of tools their results"
        )
    if found[-1]["role"] == "assistant" and thinks:
        raise RequestError(400, "messages: the last begins the answer, needs thinking disabled")
    return found


def _combined(turns: list[Turn]) -> list[Turn]:
    found: list[Turn] = []
    for turn in turns:
        if found and found[-1]["role"] == turn["role"] != "tool":
            found[-1] = _both(found[-1], turn)
        else:
            found.append(turn)
    return found


def _both(one: Turn, other: Turn) -> Turn:
    """Merge two turns as if the blocks of both had been in one."""
    between = "" if one["role"] == "assistant" else "\n"
    texts = [turn["content"] for turn in (one, other) if turn["content"]]
    joined: Turn = {**one, "content": between.join(texts)}
    for name in ("reasoning_content", "tool_calls"):
        if name in other:
            joined[name] = one[name] + other[name] if name in one else other[name]
    return joined


def _of_message(message: Fields, names: dict[str, str]) -> list[Turn]:
    role = message.required("role")
    content = message.get("content", str, list)
    if role not in ("user", "assistant", "system"):
        raise RequestError(400, f"messages: role {role[:40]!r}, needs user or assistant")
    if isinstance(content, str) or content is None:
        return [{"role": role, "content": content or ""}]
    where = "messages: content"
    blocks = [Fields(_object(block, where), where=f"{where}.") for block in content]
    return _assistant(blocks, names) if role == "assistant" else _user(role, blocks, names)


def _assistant(blocks: list[Fields], names: dict[str, str]) -> list[Turn]:
    turn: Turn = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match kind := block.required("type"):
            case "text":
                turn["content"] += block.text("text")
            case "thinking":
                turn["reasoning_content"] = turn.get("reasoning_content", "") + block.text(kind)
            case "redacted_thinking":
                continue
            case _ if _is_of_provider(kind):
                ignore(f"messages: content: {kind}", "a block of a tool that a provider runs")
            case "tool_use":
                calls.append(_call(block))
                names[calls[-1]["id"]] = calls[-1]["function"]["name"]
            case _:
                raise _unknown(kind)
    return [{**turn, "tool_calls": calls}] if calls else [turn]


def _call(block: Fields) -> dict[str, Any]:
    function: Turn = {"name": block.required("name"), "arguments": block.get("input", dict) or {}}
    return {"id": block.required("id"), "type": "function", "function": function}


def _user(role: str, blocks: list[Fields], names: dict[str, str]) -> list[Turn]:
    found, text = list[Turn](), list[str]()
    for block in blocks:
        match kind := block.required("type"):
            case "text":
                text.append(block.text("text"))
            case "tool_result":
                found.append(_result(block, names))
            case "document" | "search_result":
                text.append(_document(block))
            case _ if _is_of_provider(kind):
                ignore(f"messages: content: {kind}", "a block of a tool that a provider runs")
            case _:
                raise _unknown(kind)
    return [*found, {"role": role, "content": "\n".join(text)}] if text else found


def _result(block: Fields, names: Mapping[str, str]) -> Turn:
    call = block.required("tool_use_id")
    content = _text(block.get("content", str, list), "messages: tool_result")
    if block.switch("is_error", default=False):
        content = dumped({"error": content})
    turn: Turn = {"role": "tool", "tool_call_id": call, "content": content}
    return {**turn, "name": names[call]} if call in names else turn


def _text(content: object, where: str) -> str:
    """Return the text of a string or of text blocks."""
    if isinstance(content, str) or content is None:
        return content or ""
    texts: list[str] = []
    for block in cast("list[object]", content):
        fields = Fields(_object(block, where), where=f"{where}.")
        match kind := fields.required("type"):
            case "text":
                texts.append(fields.text("text"))
            case "document" | "search_result":
                texts.append(_document(fields))
            case "tool_reference":
                ignore(f"{where}: {kind}", "all tools are given with the request")
            case _:
                raise _unknown(kind)
    return "\n".join(texts)


def _is_of_provider(kind: str) -> bool:
    """Return whether a block belongs to a tool that a provider ran."""
    return kind.endswith("_tool_result") or kind in ("server_tool_use", "mcp_tool_use")


def _document(block: Fields) -> str:
    """Return the text of a document or of a search result, with its title."""
    if block.required("type") == "search_result":
        text = _text(block.get("content", str, list), "messages: search_result")
    else:
        source = Fields(block.get("source", dict) or {}, where="messages: document.source.")
        match kind := source.required("type"):
            case "text":
                text = source.text("data")
            case "content":
                text = _text(source.get("content", str, list), "messages: document")
            case _:
                raise RequestError(400, f"messages: a document of {kind[:40]!r}, needs text")
    title = block.text("title")
    return f"{title}\n{text}" if title else text


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(400, f"{where}: {str(value)[:40]!r}, needs a block, an object")
    return cast("dict[str, Any]", value)


def _unknown(kind: str) -> RequestError:
    known = "text, tool_use, tool_result and thinking"
    return RequestError(400, f"messages: a block of type {kind[:40]!r}, needs {known}")
