"""OpenAI's responses. None is kept: each request brings the whole conversation."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.batching.results import Finish
from wgpu_backend.server.api import peer_fields
from wgpu_backend.server.api.openai.response_items import Items, Namespaces
from wgpu_backend.server.api.openai.response_messages import read_turns
from wgpu_backend.server.api.openai.schema import USUAL
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import Completion, begin_completion
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.request import CompletionRequest, RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.sse import encode_event
from wgpu_backend.server.core.state import State, cancel_when_gone, start_stream
from wgpu_backend.server.core.structured_output import (
    choose_tools,
    response_grammar,
    select_client_tools,
)
from wgpu_backend.server.core.timings import Pace, make_timings, needs_progress

_FORM = {
    **peer_fields.FORM,
    **schema.ignore_fields(
        "user", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "stream_options", "max_tool_calls", "prompt_cache_options",
        "moderation", "context_management", "access_programs", "background_options",
        "client_metadata",
    ),
    **schema.refuse_fields("no templates of prompts are kept here", "prompt"),
    **schema.refuse_fields("no pictures are made here", "image"),
    "model": schema.MODEL_OR_OWN,
    "input": Field((str, list), "a text, or items of a conversation", required=True),
    "instructions": Field((str,), "a system message in front of it"),
    "max_output_tokens": Field((int,), "tokens that the answer may have", least=1),
    "temperature": Field((float,), "1 where it is missing", least=0),
    "top_p": Field((float,), least=0, most=1),
    "tools": schema.TOOLS,
    "tool_choice": Field((str, dict), "auto, none, required, or a function"),
    "reasoning": Field((dict,), "effort: none, or how much"),
    "text": Field((dict,), "format: what the answer has to look like"),
    "truncation": Field(
        (str,), "auto: leave out the oldest of what is too long", among=("auto", "disabled")
    ),
    "include": Field((list,), "message.output_text.logprobs: log probabilities of tokens"),
    "top_logprobs": schema.LOGPROBS,
    "metadata": Field((dict,), "taken, and given back"),
    "parallel_tool_calls": Field((bool,), "false: at most one call"),
    "stream": schema.STREAM,
    "return_progress": schema.PROGRESS,
    "timings_per_token": schema.TIMINGS,
    "background": Field((bool,), "is refused"),
    "previous_response_id": Field((str,), "is refused: no response is kept"),
    "conversation": Field((str, dict), "is refused: none is kept"),
}  # fmt: skip
_REASONING = {"effort": schema.TEXT, **schema.ignore_fields("summary", "generate_summary")}
_TEXT = {"format": schema.OBJECT, "verbosity": Field((str,), "taken, and given back")}
_LIKELY = "message.output_text.logprobs"
_KEPT = "no response is kept here, send the conversation itself"


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def respond(request: Request, fields: Fields) -> Response:
        spaces = Namespaces(fields.objects("tools"))
        wanted = _make_request(fields, spaces)
        asked = _ResponseRequest(
            state.get_model_name(fields),
            wanted,
            _echo_fields(fields),
            Pace.from_fields(fields),
            spaces,
        )
        if fields.switch("stream", default=False):
            return await _stream_response(state, request, asked)
        return JSONResponse(await cancel_when_gone(request, _answer(state, asked)))

    sse = "text/event-stream"
    paths = {"/v1/responses": "OpenAI", "/responses": "llama-server"}
    return [
        Endpoint(api, "POST", path, "Answer a conversation", respond, _FORM, sse)
        for path, api in paths.items()
    ]


@dataclass(frozen=True, slots=True)
class _ResponseRequest:
    """A request: its model, its completion request, and the fields that the response repeats."""

    name: str
    wanted: CompletionRequest
    echoed: dict[str, Any]
    pace: Pace
    spaces: Namespaces

    def head(self) -> dict[str, Any]:
        """Return an empty response."""
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": self.name,
            "output": [],
            "usage": None,
            **self.echoed,
        }


def _echo_fields(fields: Fields) -> dict[str, Any]:
    reasoning = Fields(fields.get("reasoning", dict) or {}, _REASONING, "reasoning.")
    temperature, top_p = fields.get("temperature", float), fields.get("top_p", float)
    return {
        "instructions": fields.get("instructions", str),
        "max_output_tokens": fields.get("max_output_tokens", int),
        "temperature": 1.0 if temperature is None else temperature,
        "top_p": 1.0 if top_p is None else top_p,
        "tools": fields.objects("tools"),
        "tool_choice": fields.get("tool_choice", str, dict) or "auto",
        "parallel_tool_calls": fields.switch("parallel_tool_calls", default=True),
        "reasoning": {"effort": reasoning.get("effort", str), "summary": None},
        "text": _echo_text(fields),
        "truncation": fields.text("truncation", "disabled"),
        "top_logprobs": fields.get("top_logprobs", int) or 0,
        "previous_response_id": None,
        "store": False,
        "background": False,
        "metadata": fields.get("metadata", dict) or {},
    }


def _echo_text(fields: Fields) -> dict[str, Any]:
    text = Fields(fields.get("text", dict) or {}, _TEXT, "text.")
    verbosity = text.get("verbosity", str)
    beside = {} if verbosity is None else {"verbosity": verbosity}
    return {"format": text.get("format", dict) or {"type": "text"}, **beside}


def _read_logprobs(fields: Fields) -> int | None:
    """Return how many of the most likely tokens to report at each place; None for none."""
    most = fields.get("top_logprobs", int)
    return 0 if most is None and _LIKELY in fields.texts("include") else most


def _make_request(fields: Fields, spaces: Namespaces) -> CompletionRequest:
    fields.refuse("background", "answers are given at once")
    fields.refuse("previous_response_id", _KEPT)
    fields.refuse("conversation", _KEPT)
    text = Fields(fields.get("text", dict) or {}, _TEXT, "text.")
    given = [_convert_tool(tool) for tool in select_client_tools(spaces.tools)]
    tools, must_call = choose_tools(fields.get("tool_choice", str, dict), given)
    reasoning = Fields(fields.get("reasoning", dict) or {}, _REASONING, "reasoning.")
    effort = reasoning.text("effort") or None
    messages = read_turns(fields)
    if not fields.get("input", str, list):
        raise RequestError(400, "input: needs at least one item")
    wanted = CompletionRequest(
        messages,
        options=_read_options(fields),
        usual=USUAL,
        tools=tools,
        must_call=must_call,
        one_call=not fields.switch("parallel_tool_calls", default=True),
        grammar=response_grammar(text.get("format", dict), "text.format"),
        think=False if effort == "none" else effort,
        optional_think="reasoning.effort",
        truncate=fields.text("truncation") == "auto",
        engine={"logprobs": _read_logprobs(fields), "progress": needs_progress(fields)},
    )
    return peer_fields.apply_peer_fields(fields, wanted)


def _read_options(fields: Fields) -> dict[str, Any]:
    found = peer_fields.read_sampling(fields)
    if (most := fields.get("max_output_tokens", int)) is not None:
        found["num_predict"] = most
    return found


def _convert_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    fields = Fields(tool, where="tools: ")
    function: dict[str, Any] = {
        "name": fields.require("name"),
        "description": fields.text("description"),
        "parameters": fields.get("parameters", dict) or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _finish_response(
    head: dict[str, Any], items: Items, finish: Finish, answer: Completion
) -> dict[str, Any]:
    """Return the finished response."""
    used, prompt = finish.usage, len(answer.request.tokens)
    whole = finish.reason != "length"
    return {
        **head,
        "status": "completed" if whole else "incomplete",
        "incomplete_details": None if whole else {"reason": "max_output_tokens"},
        "output": items.done,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": answer.count(items.thought)},
            "total_tokens": prompt + used.completion_tokens,
        },
    }


async def _answer(state: State, asked: _ResponseRequest) -> dict[str, Any]:
    async with state.using(asked.name) as loaded:
        answer, items, finish = (
            await begin_completion(loaded, asked.wanted),
            Items(asked.spaces),
            None,
        )
        async for output in answer:
            items.add_logprobs(output.logprobs)
            for part in output.parts:
                items.push(part)
            finish = output.finish
        assert finish is not None
        items.close("incomplete" if finish.reason == "length" else "completed")
        return _finish_response(asked.head(), items, finish, answer)


async def _stream_response(state: State, request: Request, asked: _ResponseRequest) -> Response:
    """Stream the numbered events of a response."""
    head, numbers = asked.head(), count()

    def numbered(data: Mapping[str, Any]) -> bytes:
        return encode_event({**data, "sequence_number": next(numbers)})

    async def events() -> AsyncGenerator[bytes]:
        async for data in _make_events(state, asked, head):
            yield numbered(data)

    def failed(_: int, message: str) -> bytes:
        error = {"code": "server_error", "message": message}
        response = {**head, "status": "failed", "error": error}
        return numbered({"type": "response.failed", "response": response})

    return await start_stream(request, events(), "text/event-stream", failed)


async def _make_events(
    state: State, asked: _ResponseRequest, head: dict[str, Any]
) -> AsyncGenerator[dict[str, Any]]:
    began = False
    async with state.using(asked.name) as loaded:
        answer, items = await begin_completion(loaded, asked.wanted), Items(asked.spaces)
        async for output in answer:
            for kind in () if began else ("response.created", "response.in_progress"):
                yield {"type": kind, "response": head}
            began = True
            beside = asked.pace.get_fields(len(answer.request.tokens), output)
            if output.reading is not None and beside:
                yield {"type": "response.in_progress", "response": head, **beside}
            items.add_logprobs(output.logprobs)
            for event in [event for part in output.parts for event in items.push(part)]:
                yield {**event, **beside}
            if output.finish is not None:
                *closing, last = _make_last_events(head, items, output.finish, answer)
                for event in closing:
                    yield event
                whole = make_timings(len(answer.request.tokens), output.finish.usage)
                yield {**last, "timings": whole} if asked.pace.times else last


def _make_last_events(
    head: dict[str, Any], items: Items, finish: Finish, answer: Completion
) -> list[dict[str, Any]]:
    status = "incomplete" if finish.reason == "length" else "completed"
    closing = items.close(status)
    response = _finish_response(head, items, finish, answer)
    return [*closing, {"type": f"response.{status}", "response": response}]
