"""OpenAI's responses, which later requests may continue."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.batching.results import Finish, TokenLogprob
from wgpu_backend.server.api import peer_fields
from wgpu_backend.server.api.ollama.routes import format_logprobs
from wgpu_backend.server.api.openai.kept_responses import Item, KeptResponses
from wgpu_backend.server.api.openai.messages import parse_arguments, read_video
from wgpu_backend.server.api.openai.schema import USUAL
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import Completion, begin_completion
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.media import MessageContent, join_parts, make_part
from wgpu_backend.server.core.request import CompletionRequest, RequestError
from wgpu_backend.server.core.request_log import ignore
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.sse import dump_arguments, encode_event
from wgpu_backend.server.core.state import State, cancel_when_gone, start_stream
from wgpu_backend.server.core.structured_output import (
    choose_tools,
    response_grammar,
    select_client_tools,
)
from wgpu_backend.server.core.timings import Pace, make_timings, needs_progress
from wgpu_backend.text.output_parsers import Content, Part, Thinking

_FORM = {
    **peer_fields.FORM,
    **schema.ignore_fields(
        "user", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "stream_options", "max_tool_calls", "prompt_cache_options",
        "moderation", "context_management", "access_programs", "background_options",
        "client_metadata",
    ),
    **schema.refuse_fields("no templates of prompts are kept here", "prompt"),
    **schema.refuse_fields("no pictures are made here", "image"),
    "model": schema.MODEL_OR_OWN,
    # LM Studio's clients load a model with an empty text.
    "input": Field((str, list), "a text, or items of a conversation", required=True, empty=True),
    "instructions": Field((str,), "a system message before the input"),
    "max_output_tokens": Field((int,), "most tokens of the answer", least=1),
    "temperature": Field((float,), "default 1", least=0),
    "top_p": Field((float,), least=0, most=1),
    "tools": schema.TOOLS,
    "tool_choice": Field((str, dict), "auto, none, required, or a function"),
    "reasoning": Field((dict,), "effort: none, or how much"),
    "text": Field((dict,), "format: format of the answer"),
    "truncation": Field(
        (str,), "auto: leave out the oldest items if they do not fit", among=("auto", "disabled")
    ),
    "include": Field((list,), "log probabilities of tokens: message.output_text.logprobs; "
        "reasoning in a field that clients send back: reasoning.encrypted_content"),
    "top_logprobs": schema.LOGPROBS,
    "metadata": Field((dict,), "accepted, and returned"),
    "parallel_tool_calls": Field((bool,), "false: at most one call"),
    "stream": schema.STREAM,
    "return_progress": schema.PROGRESS,
    "timings_per_token": schema.TIMINGS,
    "background": Field((bool,), "is refused"),
    "previous_response_id": Field((str,), "a response whose conversation comes before the input"),
    "store": Field((bool,), "false: the response cannot be continued by its id"),
    "conversation": Field((str, dict), "is refused: none is kept"),
}  # fmt: skip
_SUMMARY = Field((str,), "auto: return the reasoning as its summary, as Ollama always does")
_REASONING = {"effort": schema.TEXT, "summary": _SUMMARY, "generate_summary": _SUMMARY}
_TEXT = {"format": schema.OBJECT, "verbosity": Field((str,), "accepted, and returned")}
_LIKELY, _SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"
# Nothing is secret here; the mark keeps another provider's content out of the prompt.
_MARK = "wgpu-backend:"
_NO_CONVERSATION = "none is kept here, send its items or a previous_response_id"
# The field of an item that parts of a type are in, and the events of the text and of the part.
_PLACES = {
    "output_text": ("content", "response.output_text", "response.content_part"),
    "reasoning_text": ("content", "response.reasoning_text", "response.content_part"),
    "summary_text": (
        "summary",
        "response.reasoning_summary_text",
        "response.reasoning_summary_part",
    ),
}
ChatMessage = dict[str, Any]
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
# Templates do not know the role developer.
_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""
    kept = KeptResponses()

    async def respond(request: Request, fields: Fields) -> Response:
        spaces = Namespaces(fields.objects("tools"))
        conversation = _read_conversation(fields, kept)
        completion_request = _make_request(fields, spaces, conversation)
        asked = _ResponseRequest(
            state.get_model_name(fields),
            completion_request,
            _echo_fields(fields),
            Pace.from_fields(fields),
            spaces,
            conversation,
            kept if fields.switch("store", default=True) else None,
            _SEALED in fields.texts("include"),
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
    """A request: its model, its completion request, and the fields that the response repeats.

    Parameters
    ----------
    conversation : list of dict
        Items that the answer follows.
    is_sealed : bool
        Whether its reasoning has an `encrypted_content`.
    kept : KeptResponses or None
        Where the response is kept; None for nowhere.
    """

    name: str
    request: CompletionRequest
    echoed: dict[str, Any]
    pace: Pace
    spaces: Namespaces
    conversation: list[Item]
    kept: KeptResponses | None
    is_sealed: bool

    def begin_items(self) -> Items:
        """Return the items of a new answer: none yet."""
        is_summarised = self.echoed["reasoning"]["summary"] is not None
        return Items(self.spaces, is_summarised=is_summarised, is_sealed=self.is_sealed)

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
    reasoning = _read_reasoning(fields)
    temperature, top_p = fields.get("temperature", float), fields.get("top_p", float)
    return {
        "instructions": fields.get("instructions", str),
        "max_output_tokens": fields.get("max_output_tokens", int),
        "temperature": 1.0 if temperature is None else temperature,
        "top_p": 1.0 if top_p is None else top_p,
        "tools": fields.objects("tools"),
        "tool_choice": fields.get("tool_choice", str, dict) or "auto",
        "parallel_tool_calls": fields.switch("parallel_tool_calls", default=True),
        "reasoning": {
            "effort": reasoning.get("effort", str),
            "summary": _read_summary(reasoning),
        },
        "text": _echo_text(fields),
        "truncation": fields.text("truncation", "disabled"),
        "top_logprobs": fields.get("top_logprobs", int) or 0,
        "previous_response_id": fields.get("previous_response_id", str),
        "store": fields.switch("store", default=True),
        "background": False,
        "metadata": fields.get("metadata", dict) or {},
    }


def _read_reasoning(fields: Fields) -> Fields:
    return Fields(fields.get("reasoning", dict) or {}, _REASONING, "reasoning.")


def _read_summary(reasoning: Fields) -> str | None:
    """Return which summary of the reasoning a request asks for, by the field's old name as well."""
    found = reasoning.text("summary") or reasoning.text("generate_summary")
    return None if found in ("", "none") else found


def _echo_text(fields: Fields) -> dict[str, Any]:
    text = Fields(fields.get("text", dict) or {}, _TEXT, "text.")
    verbosity = text.get("verbosity", str)
    extra = {} if verbosity is None else {"verbosity": verbosity}
    return {"format": text.get("format", dict) or {"type": "text"}, **extra}


def _read_logprobs(fields: Fields) -> int | None:
    """Return how many of the most likely tokens to report at each place; None for none."""
    most = fields.get("top_logprobs", int)
    return 0 if most is None and _LIKELY in fields.texts("include") else most


def _read_conversation(fields: Fields, kept: KeptResponses) -> list[Item]:
    """Return the items of the conversation: those of the response before, and the input."""
    previous = fields.get("previous_response_id", str)
    given = fields.get("input", str, list)
    if isinstance(given, str):
        own: list[Item] = [{"role": "user", "content": given}]
    else:
        own = [kept.resolve(item) for item in fields.objects("input")]
    return [*(kept.conversation(previous) if previous else ()), *own]


def _make_request(
    fields: Fields, spaces: Namespaces, conversation: Sequence[Item]
) -> CompletionRequest:
    fields.refuse("background", "answers are given at once")
    fields.refuse("conversation", _NO_CONVERSATION)
    text = Fields(fields.get("text", dict) or {}, _TEXT, "text.")
    given = [_convert_tool(tool) for tool in select_client_tools(spaces.tools)]
    tools, must_call = choose_tools(fields.get("tool_choice", str, dict), given)
    reasoning = _read_reasoning(fields)
    effort = reasoning.text("effort") or None
    messages = read_messages(fields, conversation)
    # After the messages, so that an item's own mistake is reported first.
    if fields.get("input", str, list) == []:
        raise RequestError(400, "input: needs at least one item")
    completion_request = CompletionRequest(
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
    return peer_fields.apply_peer_fields(fields, completion_request)


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
    asked: _ResponseRequest,
    head: dict[str, Any],
    items: Items,
    finish: Finish,
    answer: Completion,
) -> dict[str, Any]:
    """Return the finished response, and keep it."""
    if asked.kept is not None:
        asked.kept.keep(head["id"], asked.conversation, items.done)
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
            await begin_completion(loaded, asked.request),
            asked.begin_items(),
            None,
        )
        async for output in answer:
            items.add_logprobs(output.logprobs)
            for part in output.parts:
                items.push(part)
            finish = output.finish
        assert finish is not None
        items.close("incomplete" if finish.reason == "length" else "completed")
        return _finish_response(asked, asked.head(), items, finish, answer)


async def _stream_response(state: State, request: Request, asked: _ResponseRequest) -> Response:
    """Stream the numbered events of a response."""
    head, numbers = asked.head(), count()

    def encode_numbered(data: Mapping[str, Any]) -> bytes:
        return encode_event({**data, "sequence_number": next(numbers)})

    async def events() -> AsyncGenerator[bytes]:
        async for data in _make_events(state, asked, head):
            yield encode_numbered(data)

    def make_failure(_: int, message: str) -> bytes:
        error = {"code": "server_error", "message": message}
        response = {**head, "status": "failed", "error": error}
        return encode_numbered({"type": "response.failed", "response": response})

    return await start_stream(request, events(), "text/event-stream", make_failure)


async def _make_events(
    state: State, asked: _ResponseRequest, head: dict[str, Any]
) -> AsyncGenerator[dict[str, Any]]:
    began = False
    async with state.using(asked.name) as loaded:
        answer, items = await begin_completion(loaded, asked.request), asked.begin_items()
        async for output in answer:
            # Not earlier: a request that fails before it has output gets an HTTP status.
            for kind in () if began else ("response.created", "response.in_progress"):
                yield {"type": kind, "response": head}
            began = True
            extra = asked.pace.get_fields(len(answer.request.tokens), output)
            # OpenAI has no event for the progress of a prompt, and clients skip unknown fields.
            if output.reading is not None and extra:
                yield {"type": "response.in_progress", "response": head, **extra}
            items.add_logprobs(output.logprobs)
            for event in [event for part in output.parts for event in items.push(part)]:
                yield {**event, **extra}
            if output.finish is not None:
                *closing, last = _make_last_events(asked, head, items, output.finish, answer)
                for event in closing:
                    yield event
                whole = make_timings(len(answer.request.tokens), output.finish.usage)
                yield {**last, "timings": whole} if asked.pace.times else last


def _make_last_events(
    asked: _ResponseRequest,
    head: dict[str, Any],
    items: Items,
    finish: Finish,
    answer: Completion,
) -> list[dict[str, Any]]:
    status = "incomplete" if finish.reason == "length" else "completed"
    closing = items.close(status)
    response = _finish_response(asked, head, items, finish, answer)
    return [*closing, {"type": f"response.{status}", "response": response}]


class Namespaces:
    """The functions of ``namespace`` tools, which models call by both names in one.

    Parameters
    ----------
    tools : sequence of mapping
        Of a request.

    Attributes
    ----------
    tools : list of mapping
        The same, with each namespace replaced by its functions.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.tools: list[Mapping[str, Any]] = []
        self._apart: dict[str, tuple[str, str]] = {}
        for tool in tools:
            if tool.get("type") == "namespace":
                self._open(tool)
            else:
                self.tools.append(tool)

    def _open(self, tool: Mapping[str, Any]) -> None:
        fields = Fields(tool, where="tools: ")
        space = fields.require("name")
        for inner in fields.objects("tools"):
            name: object = inner.get("name")
            if not isinstance(name, str) or not name:
                raise RequestError(400, f"tools: {space[:40]}: needs functions with names")
            # Templates have one level of names.
            joined = join_name(space, name)
            self._apart[joined] = space, name
            self.tools.append({**inner, "name": joined})

    def split_name(self, name: str) -> dict[str, str]:
        """Split the name of a function that a model calls into its name and its namespace."""
        if name not in self._apart:
            return {"name": name}
        space, inner = self._apart[name]
        return {"name": inner, "namespace": space}


def join_name(space: str, name: str) -> str:
    """Return the name by which a model calls a function of a namespace."""
    return f"{space}__{name}" if space else name


@dataclass(slots=True)
class Items:
    """The items of an answer: finished ones, and the open one.

    Parameters
    ----------
    spaces : Namespaces
        Of the request's tools.
    is_summarised : bool
        Reasoning is the summary of its item; otherwise the content, as in llama-server and vLLM.
    is_sealed : bool
        Reasoning is in `encrypted_content` too, without which some clients do not send it back.
    """

    spaces: Namespaces = field(default_factory=Namespaces)
    is_summarised: bool = False
    is_sealed: bool = False
    done: list[Item] = field(default_factory=list[Item])
    thought: str = ""
    _open: Item | None = None
    _likely: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    def add_logprobs(self, found: Sequence[TokenLogprob]) -> None:
        """Take log probabilities of the tokens that the next parts are made of."""
        self._likely += found

    def _take_logprobs(self, text: str) -> list[Item]:
        """Take the log probabilities of a text that ends with the newest token."""
        # Tokens before the text were a tag, which the parser removed.
        size, found = len(text.encode()), list[TokenLogprob]()
        while self._likely and size > 0:
            found.insert(0, self._likely.pop())
            size -= len(found[0].piece)
        self._likely = []
        return format_logprobs(found)

    def push(self, part: Part) -> list[Item]:
        """Return the events of another part."""
        if isinstance(part, Content):
            return self._add_text("message", "output_text", part.text)
        if isinstance(part, Thinking):
            self.thought += part.text
            inner = "summary_text" if self.is_summarised else "reasoning_text"
            return self._add_text("reasoning", inner, part.text)
        self._likely = []
        return [*self.close(), *self._add_call(part.name, dump_arguments(part.arguments))]

    def _add_text(self, kind: str, inner: str, text: str) -> list[Item]:
        if not text:
            return []
        events: list[Item] = []
        # An answer may switch between thoughts and text; each switch is an item of its own.
        if self._open is None or self._open["type"] != kind:
            events += [*self.close(), *self._begin_item(kind, inner)]
        assert self._open is not None
        likely = self._take_logprobs(text)
        name, event, _ = _PLACES[inner]
        part: Item = self._open[name][0]
        part["text"] += text
        more: Item = {"logprobs": likely} if inner == "output_text" else {}
        part |= {name: [*part[name], *values] for name, values in more.items()}
        return [*events, self._make_event(inner, f"{event}.delta", delta=text, **more)]

    def _begin_item(self, kind: str, inner: str) -> list[Item]:
        name, _, event = _PLACES[inner]
        item: Item = {"id": _make_id(kind), "type": kind, "status": "in_progress", name: []}
        item |= {"role": "assistant"} if kind == "message" else {"summary": []}
        part: Item = {"type": inner, "text": ""}
        if inner == "output_text":
            part |= {"annotations": [], "logprobs": []}
        self._open = {**item, name: [part]}
        began = {"type": "response.output_item.added", "output_index": len(self.done), "item": item}
        return [began, self._make_event(inner, f"{event}.added", part=dict(part))]

    def _make_event(self, inner: str, kind: str, **more: Any) -> Item:  # noqa: ANN401
        assert self._open is not None
        index = f"{_PLACES[inner][0]}_index"
        where = {"item_id": self._open["id"], "output_index": len(self.done), index: 0}
        return {"type": kind, **where, **more}

    def _add_call(self, name: str, arguments: str) -> list[Item]:
        call = {**self.spaces.split_name(name), "call_id": f"call_{uuid.uuid4().hex[:24]}"}
        item = {"id": _make_id("function_call"), "type": "function_call", **call}
        at = {"output_index": len(self.done)}
        where = {"item_id": item["id"], **at}
        # The parser yields whole calls, so a call is begun and ended in the same step.
        began = {**item, "status": "in_progress", "arguments": ""}
        kind = "response.function_call_arguments"
        self.done.append({**item, "status": "completed", "arguments": arguments})
        return [
            {"type": "response.output_item.added", **at, "item": began},
            {"type": f"{kind}.delta", **where, "delta": arguments},
            {"type": f"{kind}.done", **where, "name": call["name"], "arguments": arguments},
            {"type": "response.output_item.done", **at, "item": self.done[-1]},
        ]

    def close(self, status: str = "completed") -> list[Item]:
        """Return the events that end the open item."""
        item = self._open
        if item is None:
            return []
        [part] = item.get("content") or item["summary"]
        item["status"], (_, text_event, part_event) = status, _PLACES[part["type"]]
        if self.is_sealed and item["type"] == "reasoning":
            item["encrypted_content"] = _MARK + part["text"]
        more: Item = {"logprobs": part["logprobs"]} if part["type"] == "output_text" else {}
        events = [
            self._make_event(part["type"], f"{text_event}.done", text=part["text"], **more),
            self._make_event(part["type"], f"{part_event}.done", part=part),
            {"type": "response.output_item.done", "output_index": len(self.done), "item": item},
        ]
        self.done.append(item)
        self._open = None
        return events


def _make_id(kind: str) -> str:
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
    return f"{prefix}_{uuid.uuid4().hex}"


def read_messages(fields: Fields, conversation: Sequence[Item]) -> list[ChatMessage]:
    """Return the messages of a request: its instructions, and its conversation.

    System texts at the beginning are merged, as are adjacent answers: templates expect roles to
    alternate.

    Raises
    ------
    RequestError
        An item is of a kind that no model here reads, or lacks what it needs.
    """
    found: list[ChatMessage] = []
    if instructions := fields.text("instructions"):
        found.append({"role": "system", "content": instructions})
    # Items that were kept are sound, so errors count from the first that was sent.
    sent = fields.get("input", str, list)
    before = len(conversation) - (1 if isinstance(sent, str) else len(sent or ()))
    for number, item in enumerate(conversation, -before):
        _add_item(Fields(item, where=f"input[{number}]."), found)
    return found


def _add_item(item: Fields, found: list[ChatMessage]) -> None:
    """Add an item; calls and reasoning go to the assistant's message that they are part of."""
    match kind := item.text("type", "message"):
        case "message":
            role = item.require("role")
            if role not in _ROLES:
                raise RequestError(400, f"input: role {role[:40]!r}, needs {', '.join(_ROLES)}")
            _add_message(found, _ROLES[role], _read_content(item, "content"))
        case "reasoning":
            thought = _read_text(item, "content") or _read_text(item, "summary")
            sealed = item.text("encrypted_content")
            if not thought and sealed.startswith(_MARK):
                thought = sealed.removeprefix(_MARK)
            _add_text(_get_assistant_message(found), "reasoning_content", thought)
        case "function_call" | "custom_tool_call" | "local_shell_call" | "shell_call":
            _get_assistant_message(found).setdefault("tool_calls", []).append(
                _convert_call(item, kind)
            )
        case _ if kind.endswith("_call_output"):
            found.append(_convert_output(item, found))
        case _:
            ignore(f"input: {kind}", "an item that no model here reads")


def _add_message(found: list[ChatMessage], role: str, content: MessageContent) -> None:
    if role == "assistant" and isinstance(content, str):
        _add_text(_get_assistant_message(found), "content", content)
    elif role != "user" and not isinstance(content, str):
        raise RequestError(400, f"input: a message of role {role!r} has pictures, needs text alone")
    # Most templates take only one system message, the first.
    elif [message["role"] for message in found] == [role] == ["system"]:
        _add_text(found[0], "content", str(content))
    else:
        found.append({"role": role, "content": content})


def _add_text(message: ChatMessage, name: str, text: str) -> None:
    message[name] = f"{message[name]}\n\n{text}" if message.get(name) else text


def _get_assistant_message(found: list[ChatMessage]) -> ChatMessage:
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _convert_call(item: Fields, kind: str) -> ChatMessage:
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
    function: ChatMessage = {"name": name, "arguments": arguments}
    number = item.text("call_id") or item.require("id")
    return {"id": number, "type": "function", "function": function}


def _convert_output(item: Fields, found: list[ChatMessage]) -> ChatMessage:
    call = item.text("call_id") or item.require("id")
    message: ChatMessage = {
        "role": "tool",
        "tool_call_id": call,
        "content": _read_content(item, "output"),
    }
    # Some templates write the function's name beside its result, which the item does not have.
    calls = [each for message in found for each in message.get("tool_calls", ())]
    names = [each["function"]["name"] for each in calls if each["id"] == call]
    return {**message, "name": names[-1]} if names else message


def _read_content(item: Fields, name: str) -> MessageContent:
    """Return the content of a message or output, with its pictures and sounds as parts."""
    given = item.get(name, str, list)
    if isinstance(given, str) or given is None:
        return given or ""
    return join_parts([_read_part(part, name, media=True) for part in item.objects(name)])


def _read_text(item: Fields, name: str) -> str:
    """Return the text of a string, or of parts joined by line breaks, as in llama-server."""
    given = item.get(name, str, list)
    if isinstance(given, str) or given is None:
        return given or ""
    return "\n".join(str(_read_part(part, name, media=False)) for part in item.objects(name))


def _read_part(part: dict[str, Any], name: str, *, media: bool) -> str | dict[str, Any]:
    fields = Fields(part, where=f"input: {name}.")
    kind = fields.require("type")
    if kind in _TEXTS:
        return fields.text("text")
    if media and kind == "input_image":
        return make_part(f"input: {name}.image_url", "image", fields.get("image_url", str))
    if media and kind == "input_audio":
        sound = cast("dict[str, Any]", fields.get("input_audio", dict) or {})
        return make_part(f"input: {name}.input_audio", "audio", sound.get("data"))
    if media and kind in ("input_video", "video_url") and kind in part:
        return read_video(f"input: {name}", part, kind)
    needed = "input_text, input_image, input_video or input_audio" if media else "text"
    raise RequestError(400, f"input: a part of type {kind[:40]!r}, needs {needed}")
