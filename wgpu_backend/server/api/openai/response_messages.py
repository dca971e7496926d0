"""Input items of OpenAI's responses as templates read conversations."""

from __future__ import annotations

from typing import Any, cast

from wgpu_backend.server.api.openai.messages import parse_arguments
from wgpu_backend.server.api.openai.response_items import join_name
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.request_log import ignore

Turn = dict[str, Any]
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


def read_turns(fields: Fields) -> list[Turn]:
    """Return the turns of a request: its instructions, and its input.

    System texts at the beginning are merged, as are adjacent answers: templates expect roles to
    alternate.

    Raises
    ------
    RequestError
        An item is of a kind that no model here reads, or lacks what it needs.
    """
    found: list[Turn] = []
    if instructions := fields.text("instructions"):
        found.append({"role": "system", "content": instructions})
    given = fields.get("input", str, list)
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for number, item in enumerate(fields.objects("input")):
        _add_item(Fields(item, where=f"input[{number}]."), found)
    return found


def _add_item(item: Fields, found: list[Turn]) -> None:
    """Add an item; calls and reasoning go to the assistant's turn that they are part of."""
    match kind := item.text("type", "message"):
        case "message":
            role = item.require("role")
            if role not in _ROLES:
                raise RequestError(400, f"input: role {role[:40]!r}, needs {', '.join(_ROLES)}")
            _add_message(found, _ROLES[role], _read_text(item, "content"))
        case "reasoning":
            thought = _read_text(item, "content") or _read_text(item, "summary")
            _add_text(_get_assistant_turn(found), "reasoning_content", thought)
        case "function_call" | "custom_tool_call" | "local_shell_call" | "shell_call":
            _get_assistant_turn(found).setdefault("tool_calls", []).append(
                _convert_call(item, kind)
            )
        case _ if kind.endswith("_call_output"):
            found.append(_convert_output(item, found))
        case "item_reference":
            raise RequestError(400, "input: item_reference: nothing is kept here, send the item")
        case _:
            ignore(f"input: {kind}", "an item that no model here reads")


def _add_message(found: list[Turn], role: str, text: str) -> None:
    if role == "assistant":
        _add_text(_get_assistant_turn(found), "content", text)
    elif [turn["role"] for turn in found] == [role] == ["system"]:
        _add_text(found[0], "content", text)
    else:
        found.append({"role": role, "content": text})


def _add_text(turn: Turn, name: str, text: str) -> None:
    turn[name] = f"{turn[name]}\n\n{text}" if turn.get(name) else text


def _get_assistant_turn(found: list[Turn]) -> Turn:
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _convert_call(item: Fields, kind: str) -> Turn:
    """Convert a call for templates; tools of types other than function have no JSON arguments."""
    match kind:
        case "function_call":
            name = join_name(item.text("namespace"), item.require("name"))
            arguments = parse_arguments(item.text("arguments"))
        case "custom_tool_call":
            name, arguments = item.require("name"), {"input": item.text("input")}
        case _:
            name = kind.removesuffix("_call")
            arguments = cast("dict[str, Any]", item.get("action", dict) or {})
    function: Turn = {"name": name, "arguments": arguments}
    number = item.text("call_id") or item.require("id")
    return {"id": number, "type": "function", "function": function}


def _convert_output(item: Fields, found: list[Turn]) -> Turn:
    call = item.text("call_id") or item.require("id")
    turn: Turn = {"role": "tool", "tool_call_id": call, "content": _read_text(item, "output")}
    calls = [each for turn in found for each in turn.get("tool_calls", ())]
    names = [each["function"]["name"] for each in calls if each["id"] == call]
    return {**turn, "name": names[-1]} if names else turn


def _read_text(item: Fields, name: str) -> str:
    """Return the text of a string, or of parts joined by line breaks, as in llama-server."""
    given = item.get(name, str, list)
    if isinstance(given, str) or given is None:
        return given or ""
    texts: list[str] = []
    for part in item.objects(name):
        fields = Fields(part, where=f"input: {name}.")
        if (kind := fields.require("type")) not in _TEXTS:
            needed = "input_text; images and files are not read"
            raise RequestError(400, f"input: a part of type {kind[:40]!r}, needs {needed}")
        texts.append(fields.text("text"))
    return "\n".join(texts)
