"""Anthropic's routes: messages, and how many tokens they have."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.batching.results import Finish
from wgpu_backend.server.api import peer_fields
from wgpu_backend.server.api.openai.schema import USUAL
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import begin_completion, count_prompt
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.errors import make_error_body
from wgpu_backend.server.core.media import MessageContent, join_parts, make_part
from wgpu_backend.server.core.request import CompletionRequest, RequestError
from wgpu_backend.server.core.request_log import get_record, ignore
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.sse import dump_arguments, encode_event
from wgpu_backend.server.core.state import State, cancel_when_gone, start_stream
from wgpu_backend.server.core.structured_output import (
    choose_tools,
    response_grammar,
    select_client_tools,
)
from wgpu_backend.text.grammar import Grammar
from wgpu_backend.text.output_parsers import Content, Part, Thinking

_COUNTED = {
    **{n: field for n, field in peer_fields.FORM.items() if n not in ("stop", "max_tokens")},
    **schema.ignore_fields(
        "metadata", "service_tier", "cache_control", "inference_geo", "context_management",
        "diagnostics", "user_profile_id", "workspace_id", "billing_policy", "speed",
    ),
    "thread": Field((dict,), "is refused: no conversation is kept"),
    "model": schema.MODEL,
    "messages": schema.MESSAGES,
    "system": Field((str, list), "a text, or blocks of type text"),
    "tools": schema.TOOLS,
    "tool_choice": Field((dict,), "type: auto, any, none, or tool with its name"),
    "thinking": Field((dict,), "type: enabled, adaptive or disabled"),
    "output_config": Field((dict,), "effort of thinking, format of the answer"),
    "output_format": Field((dict,), "the older name of output_config.format"),
}  # fmt: skip
_MESSAGES = {
    **_COUNTED,
    "max_tokens": Field((int,), "most tokens of the answer", required=True, least=1),
    "stream": schema.STREAM,
    "stop_sequences": Field((list,), "texts that end the answer, and are not returned"),
    "temperature": Field((float,), "default 1", least=0, most=2),
    "top_p": Field((float,), least=0, most=1),
    "top_k": Field((int,), least=0),
}
_CHOICE = {"type": schema.TEXT, "disable_parallel_tool_use": schema.SWITCH, "name": schema.TEXT}
_THINKING = {
    "type": Field((str,), required=True, among=("enabled", "adaptive", "disabled")),
    **schema.ignore_fields("budget_tokens", "display"),
}
_OUTPUT = {"effort": schema.TEXT, "format": schema.OBJECT}
ChatMessage = dict[str, Any]


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def messages(request: Request, fields: Fields) -> Response:
        name, chat_request = fields.require("model"), _make_request(fields)
        if fields.switch("stream", default=False):
            lines = _stream_events(state, name, chat_request)
            return await start_stream(request, lines, "text/event-stream", _make_error_event)
        return JSONResponse(await cancel_when_gone(request, _answer(state, name, chat_request)))

    async def count(_: Request, fields: Fields) -> Response:
        chat_request = _make_request(fields)
        async with state.using(fields.require("model"), "any") as loaded:
            tokens = await count_prompt(loaded, chat_request)
        return JSONResponse({"input_tokens": tokens})

    path, sse = "/v1/messages", "text/event-stream"
    return [
        Endpoint("Anthropic", "POST", path, "Answer a conversation", messages, _MESSAGES, sse),
        Endpoint(
            "Anthropic", "POST", f"{path}/count_tokens", "Tokens of a conversation", count, _COUNTED
        ),
    ]


def _make_request(fields: Fields) -> CompletionRequest:
    _require_whole(fields)
    options = peer_fields.read_sampling(fields)
    if stops := fields.texts("stop_sequences"):
        options["stop"] = stops
    if (most := fields.get("max_tokens", int)) is not None:
        options["num_predict"] = most
    choice = Fields(fields.get("tool_choice", dict) or {}, _CHOICE, "tool_choice.")
    given = [_convert_tool(tool) for tool in select_client_tools(fields.objects("tools"), "custom")]
    tools, must_call = choose_tools(fields.get("tool_choice", dict), given)
    output = Fields(fields.get("output_config", dict) or {}, _OUTPUT, "output_config.")
    think, may = _read_thinking(fields)
    messages = read_messages(fields, thinks=bool(think) and not may)
    if may and messages[-1]["role"] == "assistant":
        # The answer has begun, after the point where the model could reason.
        think = False
    request = CompletionRequest(
        messages,
        options=options,
        usual=USUAL,
        tools=tools,
        must_call=must_call,
        grammar=_read_format(fields, output),
        think=think,
        optional_think="thinking",
        one_call=choice.switch("disable_parallel_tool_use", default=False),
        truncate=False,
    )
    return peer_fields.apply_peer_fields(fields, request)


def _require_whole(fields: Fields) -> None:
    """Refuse to continue a stored conversation; clients send all messages after this error."""
    if fields.get("thread", dict) is not None:
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        why = "no conversation is kept here, send the messages themselves"
        raise RequestError(400, f"thread is refused: {why}", details)


def _convert_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    fields = Fields(tool, where="tools: ")
    function: dict[str, Any] = {
        "name": fields.require("name"),
        "description": fields.text("description"),
        "parameters": fields.get("input_schema", dict) or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _read_format(fields: Fields, output: Fields) -> Grammar | None:
    """Return the grammar of the answer's format, which clients may send by both of its names."""
    given = output.get("format", dict), fields.get("output_format", dict)
    if all(given) and given[0] != given[1]:
        raise RequestError(400, "output_config.format, output_format: 2 formats, needs one")
    return response_grammar(given[0], "output_config.format") or response_grammar(
        given[1], "output_format"
    )


def _read_thinking(fields: Fields) -> tuple[bool | str | None, bool]:
    """Return whether or how much to reason, and whether the model may skip it."""
    output = Fields(fields.get("output_config", dict) or {}, _OUTPUT, "output_config.")
    given = fields.get("thinking", dict)
    kind = "disabled" if given is None else Fields(given, _THINKING, "thinking.").text("type")
    if kind == "disabled":
        return None if given is None and peer_fields.has_thinking(fields) else False, False
    return output.text("effort") or True, kind == "adaptive"


@dataclass(slots=True)
class _Blocks:
    """The blocks of an answer: finished ones, and the open one."""

    done: list[dict[str, Any]]
    open: dict[str, Any] | None = None

    def push(self, part: Part) -> list[dict[str, Any]]:
        """Return the events of another part."""
        if isinstance(part, Content | Thinking):
            kind = "thinking" if isinstance(part, Thinking) else "text"
            return self._add_text(kind, part.text)
        block = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": part.name}
        events = [*self.close(), self._open_block({**block, "input": {}})]
        events.append(
            self._make_delta("input_json_delta", "partial_json", dump_arguments(part.arguments))
        )
        self.open = {**block, "input": dict(part.arguments)}
        return [*events, *self.close()]

    def _add_text(self, kind: str, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        events: list[dict[str, Any]] = []
        if self.open is None or self.open["type"] != kind:
            more = {"signature": ""} if kind == "thinking" else {}
            events += [*self.close(), self._open_block({"type": kind, kind: "", **more})]
        assert self.open is not None
        self.open[kind] += text
        return [*events, self._make_delta(f"{kind}_delta", kind, text)]

    def _open_block(self, block: dict[str, Any]) -> dict[str, Any]:
        self.open = dict(block)
        return {"type": "content_block_start", "index": len(self.done), "content_block": block}

    def _make_delta(self, kind: str, name: str, text: str) -> dict[str, Any]:
        delta = {"type": kind, name: text}
        return {"type": "content_block_delta", "index": len(self.done), "delta": delta}

    def close(self) -> list[dict[str, Any]]:
        """Return the events that end the open block."""
        if self.open is None:
            return []
        thinks = self.open["type"] == "thinking"
        # Clients read a signature of reasoning before the end of its block.
        signed = [self._make_delta("signature_delta", "signature", "")] if thinks else []
        self.done.append(self.open)
        self.open = None
        return [*signed, {"type": "content_block_stop", "index": len(self.done) - 1}]


def _make_head(name: str) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid.uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _make_end(
    finish: Finish, blocks: list[dict[str, Any]], request: CompletionRequest
) -> dict[str, Any]:
    """Return the reason of the end; a stop text of the model's own counts as the end of a turn."""
    reason = "end_turn"
    stop = finish.stop if finish.stop in request.options.get("stop", ()) else None
    if finish.reason == "length":
        reason = "model_context_window_exceeded" if finish.context_full else "max_tokens"
    elif any(block["type"] == "tool_use" for block in blocks):
        reason = "tool_use"
    elif stop is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stop}


def _make_usage(prompt: int, cached: int, made: int) -> dict[str, Any]:
    """Return the token counts; tokens read from the cache are counted apart."""
    return {
        # Anthropic counts cached tokens apart, not among the input.
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": made,
    }


async def _answer(state: State, name: str, request: CompletionRequest) -> dict[str, Any]:
    async with state.using(name) as loaded:
        answer, blocks, finish = await begin_completion(loaded, request), _Blocks([]), None
        async for output in answer:
            for part in output.parts:
                blocks.push(part)
            finish = output.finish
    blocks.close()
    assert finish is not None
    used, prompt = finish.usage, len(answer.request.tokens)
    usage = _make_usage(prompt, used.cached_tokens, used.completion_tokens)
    end = _make_end(finish, blocks.done, request)
    return {**_make_head(name), "content": blocks.done, **end, "usage": usage}


async def _stream_events(
    state: State, name: str, request: CompletionRequest
) -> AsyncGenerator[bytes]:
    """Yield the events of a streamed answer."""
    began = False
    async with state.using(name) as loaded:
        answer, blocks = await begin_completion(loaded, request), _Blocks([])
        prompt = len(answer.request.tokens)
        async for output in answer:
            if not began:
                began = True
                message = {**_make_head(name), "usage": _make_usage(prompt, 0, 0)}
                yield encode_event({"type": "message_start", "message": message})
                # Anthropic sends one after the start; SDKs ignore it.
                yield encode_event({"type": "ping"})
            for part in output.parts:
                for event in blocks.push(part):
                    yield encode_event(event)
            if output.finish is not None:
                for event in [
                    *blocks.close(),
                    *_make_last_events(output.finish, blocks, prompt, request),
                ]:
                    yield encode_event(event)


def _make_error_event(status: int, message: str) -> bytes:
    """Return the last event of a stream that fails."""
    return encode_event(make_error_body("Anthropic", status, message))


def _make_last_events(
    finish: Finish, blocks: _Blocks, prompt: int, request: CompletionRequest
) -> list[dict[str, Any]]:
    used = finish.usage
    usage = _make_usage(prompt, used.cached_tokens, used.completion_tokens)
    delta = _make_end(finish, blocks.done, request)
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


def read_messages(fields: Fields, *, thinks: bool = False) -> list[ChatMessage]:
    """Return the messages of a request; the last may begin the answer.

    Messages of the same role are merged, since templates expect roles to alternate.

    Parameters
    ----------
    thinks : bool
        Whether the model reasons, which it can only do before its answer begins.

    Raises
    ------
    RequestError
        A block is of a kind that no model here reads, or lacks what it needs.
    """
    found: list[ChatMessage] = []
    if system := _read_text(fields.get("system", str, list), "system"):
        found.append({"role": "system", "content": system})
    names: dict[str, str] = {}
    for number, message in enumerate(fields.objects("messages")):
        found += _convert_message(Fields(message, where=f"messages[{number}]."), names)
    found = _merge_messages(found)
    if not fields.get("messages", list) or not found or found[-1].get("tool_calls"):
        raise RequestError(
            400, "messages: needs at least one, and tool calls must be followed by their results"
        )
    if found[-1]["role"] == "assistant" and thinks:
        raise RequestError(
            400,
            "messages: the last one is from the assistant and begins the answer; disable thinking",
        )
    return found


def _merge_messages(messages: list[ChatMessage]) -> list[ChatMessage]:
    found: list[ChatMessage] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"] != "tool":
            found[-1] = _join_messages(found[-1], message)
        else:
            found.append(message)
    return found


def _join_messages(one: ChatMessage, other: ChatMessage) -> ChatMessage:
    """Merge two messages as if the blocks of both had been in one."""
    # As the blocks of one message are joined: an assistant's without, a user's with line breaks.
    between = "" if one["role"] == "assistant" else "\n"
    contents = [message["content"] for message in (one, other) if message["content"]]
    if all(isinstance(content, str) for content in contents):
        joined: ChatMessage = {**one, "content": between.join(contents)}
    else:
        joined = {**one, "content": join_parts([*chain.from_iterable(map(_list_parts, contents))])}
    for name in ("reasoning_content", "tool_calls"):
        if name in other:
            joined[name] = one[name] + other[name] if name in one else other[name]
    return joined


def _list_parts(content: MessageContent) -> list[str | dict[str, Any]]:
    if isinstance(content, str):
        return [content]
    return [part["text"] if part["type"] == "text" else part for part in content]


def _convert_message(message: Fields, names: dict[str, str]) -> list[ChatMessage]:
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


def _convert_assistant(blocks: list[Fields], names: dict[str, str]) -> list[ChatMessage]:
    message: ChatMessage = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match kind := block.require("type"):
            case "text":
                message["content"] += block.text("text")
            case "thinking":
                message["reasoning_content"] = message.get("reasoning_content", "") + block.text(
                    kind
                )
            case "redacted_thinking":
                continue
            case _ if _is_provider_block(kind):
                ignore(f"messages: content: {kind}", "a block of a tool that a provider runs")
            case "tool_use":
                calls.append(_convert_call(block))
                names[calls[-1]["id"]] = calls[-1]["function"]["name"]
            case _:
                raise _make_block_error(kind)
    return [{**message, "tool_calls": calls}] if calls else [message]


def _convert_call(block: Fields) -> dict[str, Any]:
    function: ChatMessage = {
        "name": block.require("name"),
        "arguments": block.get("input", dict) or {},
    }
    return {"id": block.require("id"), "type": "function", "function": function}


def _convert_user(role: str, blocks: list[Fields], names: dict[str, str]) -> list[ChatMessage]:
    found, parts = list[ChatMessage](), list[str | dict[str, Any]]()
    for block in blocks:
        match kind := block.require("type"):
            case "text":
                parts.append(block.text("text"))
            case "image":
                parts.append(_read_image(block))
            case "tool_result":
                found.append(_convert_result(block, names))
            case "document" | "search_result":
                parts.append(_read_document(block))
            case _ if _is_provider_block(kind):
                ignore(f"messages: content: {kind}", "a block of a tool that a provider runs")
            case _:
                raise _make_block_error(kind)
    return [*found, {"role": role, "content": join_parts(parts)}] if parts else found


def _read_image(block: Fields) -> dict[str, Any]:
    """Return a picture as a part of a message."""
    source = Fields(block.get("source", dict) or {}, where="messages: image.source.")
    if (kind := source.require("type")) == "url" and get_record().remote is not None:
        return make_part("messages: image.source.url", "image", source.require("url"))
    if kind != "base64":
        raise RequestError(400, f"messages: an image of {kind[:40]!r}, needs base64 with its data")
    return make_part("messages: image.source.data", "image", source.require("data"))


def _convert_result(block: Fields, names: Mapping[str, str]) -> ChatMessage:
    call = block.require("tool_use_id")
    given, where = block.get("content", str, list), "messages: tool_result"
    parts = [given or ""] if isinstance(given, str | None) else _read_blocks(given, where)
    texts = [part for part in parts if isinstance(part, str)]
    if block.switch("is_error", default=False):
        error = dump_arguments({"error": "\n".join(texts)})
        parts = [error, *(part for part in parts if not isinstance(part, str))]
    content = join_parts(parts)
    message: ChatMessage = {"role": "tool", "tool_call_id": call, "content": content}
    return {**message, "name": names[call]} if call in names else message


def _read_text(content: object, where: str) -> str:
    """Return the text of a string or of text blocks."""
    if isinstance(content, str) or content is None:
        return content or ""
    blocks = _read_blocks(cast("list[object]", content), where, pictures=False)
    return "\n".join(map(str, blocks))


def _read_blocks(
    blocks: list[object], where: str, *, pictures: bool = True
) -> list[str | dict[str, Any]]:
    """Return the texts of blocks, and pictures as parts of a message where they are allowed."""
    found: list[str | dict[str, Any]] = []
    for block in blocks:
        fields = Fields(_require_object(block, where), where=f"{where}.")
        match kind := fields.require("type"):
            case "text":
                found.append(fields.text("text"))
            case "image" if pictures:
                found.append(_read_image(fields))
            case "document" | "search_result":
                found.append(_read_document(fields))
            case "tool_reference":
                ignore(f"{where}: {kind}", "all tools are given with the request")
            case _:
                raise _make_block_error(kind)
    return found


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
    known = "text, image, tool_use, tool_result and thinking"
    return RequestError(400, f"messages: a block of type {kind[:40]!r}, needs {known}")
