"""Anthropic's messages as templates read conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.request_log import ignore
from wgpu_backend.server.core.sse import dump_arguments

Turn = dict[str, Any]


def read_turns(fields: Fields, *, thinks: bool = False) -> list[Turn]:
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
    if system := _read_text(fields.get("system", str, list), "system"):
        found.append({"role": "system", "content": system})
    names: dict[str, str] = {}
    for number, message in enumerate(fields.objects("messages")):
        found += _convert_message(Fields(message, where=f"messages[{number}]."), names)
    found = _merge_turns(found)
    if not fields.get("messages", list) or not found or found[-1].get("tool_calls"):
        raise RequestError(
            400, "messages: needs at least one, and behind calls of tools their results"
        )
    if found[-1]["role"] == "assistant" and thinks:
        raise RequestError(400, "messages: the last begins the answer, needs thinking disabled")
    return found


def _merge_turns(turns: list[Turn]) -> list[Turn]:
    found: list[Turn] = []
    for turn in turns:
        if found and found[-1]["role"] == turn["role"] != "tool":
            found[-1] = _join_turns(found[-1], turn)
        else:
            found.append(turn)
    return found


def _join_turns(one: Turn, other: Turn) -> Turn:
    """Merge two turns as if the blocks of both had been in one."""
    between = "" if one["role"] == "assistant" else "\n"
    texts = [turn["content"] for turn in (one, other) if turn["content"]]
    joined: Turn = {**one, "content": between.join(texts)}
    for name in ("reasoning_content", "tool_calls"):
        if name in other:
            joined[name] = one[name] + other[name] if name in one else other[name]
    return joined


def _convert_message(message: Fields, names: dict[str, str]) -> list[Turn]:
    role = message.require("role")
    content = message.get("content", str, list)
    if role not in ("user", "assistant", "system"):
        raise RequestError(400, f"messages: role {role[:40]!r}, needs user or assistant")
    if isinstance(content, str) or content is None:
        return [{"role": role, "content": content or ""}]
    where = "messages: content"
    blocks = [Fields(_require_object(block, where), where=f"{where}.") for block in content]
    return (
        _convert_assistant(blocks, names)
        if role == "assistant"
        else _convert_user(role, blocks, names)
    )


def _convert_assistant(blocks: list[Fields], names: dict[str, str]) -> list[Turn]:
    turn: Turn = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match kind := block.require("type"):
            case "text":
                turn["content"] += block.text("text")
            case "thinking":
                turn["reasoning_content"] = turn.get("reasoning_content", "") + block.text(kind)
            case "redacted_thinking":
                continue
            case _ if _is_provider_block(kind):
                ignore(f"messages: content: {kind}", "a block of a tool that a provider runs")
            case "tool_use":
                calls.append(_convert_call(block))
                names[calls[-1]["id"]] = calls[-1]["function"]["name"]
            case _:
                raise _make_block_error(kind)
    return [{**turn, "tool_calls": calls}] if calls else [turn]


def _convert_call(block: Fields) -> dict[str, Any]:
    function: Turn = {"name": block.require("name"), "arguments": block.get("input", dict) or {}}
    return {"id": block.require("id"), "type": "function", "function": function}


def _convert_user(role: str, blocks: list[Fields], names: dict[str, str]) -> list[Turn]:
    found, text = list[Turn](), list[str]()
    for block in blocks:
        match kind := block.require("type"):
            case "text":
                text.append(block.text("text"))
            case "tool_result":
                found.append(_convert_result(block, names))
            case "document" | "search_result":
                text.append(_read_document(block))
            case _ if _is_provider_block(kind):
                ignore(f"messages: content: {kind}", "a block of a tool that a provider runs")
            case _:
                raise _make_block_error(kind)
    return [*found, {"role": role, "content": "\n".join(text)}] if text else found


def _convert_result(block: Fields, names: Mapping[str, str]) -> Turn:
    call = block.require("tool_use_id")
    content = _read_text(block.get("content", str, list), "messages: tool_result")
    if block.switch("is_error", default=False):
        content = dump_arguments({"error": content})
    turn: Turn = {"role": "tool", "tool_call_id": call, "content": content}
    return {**turn, "name": names[call]} if call in names else turn


def _read_text(content: object, where: str) -> str:
    """Return the text of a string or of text blocks."""
    if isinstance(content, str) or content is None:
        return content or ""
    texts: list[str] = []
    for block in cast("list[object]", content):
        fields = Fields(_require_object(block, where), where=f"{where}.")
        match kind := fields.require("type"):
            case "text":
                texts.append(fields.text("text"))
            case "document" | "search_result":
                texts.append(_read_document(fields))
            case "tool_reference":
                ignore(f"{where}: {kind}", "all tools are given with the request")
            case _:
                raise _make_block_error(kind)
    return "\n".join(texts)


def _is_provider_block(kind: str) -> bool:
    """Return whether a block belongs to a tool that a provider ran."""
    return kind.endswith("_tool_result") or kind in ("server_tool_use", "mcp_tool_use")


def _read_document(block: Fields) -> str:
    """Return the text of a document or of a search result, with its title."""
    if block.require("type") == "search_result":
        text = _read_text(block.get("content", str, list), "messages: search_result")
    else:
        source = Fields(block.get("source", dict) or {}, where="messages: document.source.")
        match kind := source.require("type"):
            case "text":
                text = source.text("data")
            case "content":
                text = _read_text(source.get("content", str, list), "messages: document")
            case _:
                raise RequestError(400, f"messages: a document of {kind[:40]!r}, needs text")
    title = block.text("title")
    return f"{title}\n{text}" if title else text


def _require_object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(400, f"{where}: {str(value)[:40]!r}, needs a block, an object")
    return cast("dict[str, Any]", value)


def _make_block_error(kind: str) -> RequestError:
    known = "text, tool_use, tool_result and thinking"
    return RequestError(400, f"messages: a block of type {kind[:40]!r}, needs {known}")
