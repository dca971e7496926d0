"""Ollama's routes that make text and embeddings: generate, chat, embed, embeddings, ps."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.batching.results import Finish, TokenLogprob
from wgpu_backend.engine.media import Part
from wgpu_backend.files.store.modelfile import KNOWN_PARAMETERS
from wgpu_backend.server.api import images
from wgpu_backend.server.api.embeddings import compute_embeddings
from wgpu_backend.server.api.llama_server.infill import infill
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import (
    Completion,
    CompletionOutput,
    begin_completion,
)
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.media import decode_base64
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest, RequestError, clamp_options
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.sse import encode_line, make_error_line, make_head
from wgpu_backend.server.core.state import (
    State,
    cancel_when_gone,
    parse_keep_alive,
    read_gpu_options,
    read_num_ctx,
    read_options,
    start_stream,
)
from wgpu_backend.server.core.structured_output import check_tools, format_grammar
from wgpu_backend.text.output_parsers import ToolCall, thinks

_OPTION = Field(schema.ANYTHING.kinds, "as in options, which take precedence")
_COMMON = {
    **dict.fromkeys(sorted(KNOWN_PARAMETERS), _OPTION),
    "model": schema.MODEL,
    "stream": schema.STREAM,
    "format": Field((str, dict), "json, or a JSON Schema that the answer must follow"),
    "keep_alive": schema.DURATION,
    "options": Field((dict,), "sampling options by Ollama's names, and num_ctx"),
    "think": Field((bool, str), "whether to reason first, or how much"),
    "truncate": Field(
        (bool,), "leave out the oldest messages, or the middle of the newest, for room"
    ),
    "shift": Field((bool,), "continue when the context is full"),
    "logprobs": Field((bool,), "return log probabilities of tokens"),
    "top_logprobs": schema.LOGPROBS,
}
_GENERATE = {
    **_COMMON,
    "prompt": Field((str,), "text to continue"),
    "suffix": Field((str,), "text after the answer"),
    "system": Field((str,), "replaces the model's own system message"),
    "template": Field((str,), "is refused: the model's own template is used"),
    "context": Field((list,), "tokens of the conversation so far"),
    "raw": Field((bool,), "continue the prompt as it is, without a template"),
    "images": Field((list,), "pictures in base64, to read or to start from"),
    "width": images.SIDE,
    "height": images.SIDE,
    "steps": images.STEPS,
}
_CHAT = {
    **_COMMON,
    "messages": Field((list,), "the conversation; if it is empty, only load the model"),
    "tools": schema.TOOLS,
}
_EMBED = {
    "model": schema.MODEL,
    "input": Field((str, list), "a text, or a list of them"),
    "truncate": Field((bool,), "cut texts that are too long"),
    "dimensions": Field((int,), "length of each vector; longer than the model's own has no effect"),
    "keep_alive": schema.DURATION,
    "options": schema.OBJECT,
}
_EMBEDDINGS = {
    "model": schema.MODEL,
    "prompt": schema.TEXT,
    "keep_alive": schema.DURATION,
    "options": schema.OBJECT,
}
_EMPTY = CompletionOutput(0)
# The largest date that all clients can parse.
FOR_EVER = datetime(2318, 1, 1, tzinfo=UTC)
Shape = Callable[[CompletionOutput, int], dict[str, Any]]
"""A function that makes the fields of an output; the number counts the calls before it."""
_EFFORTS = ("high", "medium", "low", "max")
ChatMessages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Route:
    """The functions by which a route reads a request and words the answer.

    Parameters
    ----------
    context : bool
        Whether the last line has the tokens that a next request can continue from.
    """

    make_request: Callable[[Fields, Loaded], CompletionRequest]
    shape: Shape
    context: bool = False


@dataclass(frozen=True, slots=True)
class _Start:
    """The arrival time of a request, and its wait for the model, in seconds."""

    began: float
    load: float

    @classmethod
    def after_loading(cls, began: float) -> _Start:
        """Return the start of a request whose model has just been loaded."""
        return cls(began, time.monotonic() - began)


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def generate(request: Request, fields: Fields) -> Response:
        name = fields.require("model")
        if name in state.image_queue:
            return await images.answer_generate(state, request, fields, name)
        return await _answer(state, request, fields, _GENERATE_ROUTE)

    async def chat(request: Request, fields: Fields) -> Response:
        return await _answer(state, request, fields, _CHAT_ROUTE)

    async def embed(request: Request, fields: Fields) -> Response:
        texts = fields.texts("input") if fields.get("input", str, list) else []
        begin = time.monotonic()
        truncate = fields.switch("truncate", default=True)
        found = await compute_embeddings(
            request, state, fields, texts, truncate=truncate, exact=False
        )
        return JSONResponse(
            {
                "model": fields.require("model"),
                "embeddings": found.vectors,
                "total_duration": _to_nanoseconds(time.monotonic() - begin),
                "load_duration": _to_nanoseconds(found.load_seconds),
                "prompt_eval_count": found.tokens,
            }
        )

    async def embeddings_(request: Request, fields: Fields) -> Response:
        text = fields.text("prompt")
        texts = [text] if text else []
        found = await compute_embeddings(request, state, fields, texts, truncate=True)
        return JSONResponse({"embedding": found.vectors[0] if found.vectors else []})

    async def ps(_: Request, __: Fields) -> Response:
        return JSONResponse(
            {"models": [_describe_loaded(each) for each in state.pool.list_models()]}
        )

    lines = "application/x-ndjson"
    return [
        Endpoint(
            "Ollama", "POST", "/api/generate", "Continue a prompt", generate, _GENERATE, lines
        ),
        Endpoint("Ollama", "POST", "/api/chat", "Answer a conversation", chat, _CHAT, lines),
        Endpoint("Ollama", "POST", "/api/embed", "Vectors of texts", embed, _EMBED),
        Endpoint("Ollama", "POST", "/api/embeddings", "Vector of a text", embeddings_, _EMBEDDINGS),
        Endpoint("Ollama", "GET", "/api/ps", "Loaded models", ps),
    ]


async def _answer(state: State, request: Request, fields: Fields, way: _Route) -> Response:
    name = fields.require("model")
    keep = fields.get("keep_alive", int, float, str)
    # As in Ollama, a request without a prompt only loads or unloads the model.
    if not (fields.text("prompt") or fields.get("messages", list)):
        return await _load_only(state, name, fields, way)
    lines = _stream_lines(state, name, fields, way)
    if fields.switch("stream", default=True):
        return await start_stream(request, lines, "application/x-ndjson", make_error_line)

    async def collect() -> dict[str, Any]:
        begin = time.monotonic()
        async with state.using(
            name, read_num_ctx(fields), keep, read_gpu_options(fields)
        ) as loaded:
            start = _Start.after_loading(begin)
            answer = await begin_completion(loaded, way.make_request(fields, loaded))
            [whole] = await answer.collect()
            end = _make_end(fields, way, whole.finish, answer, start)
            return {**make_head(name), **_shape(way, whole, 0), **end}

    return JSONResponse(await cancel_when_gone(request, collect()))


async def _stream_lines(
    state: State, name: str, fields: Fields, way: _Route
) -> AsyncGenerator[bytes]:
    """Yield the lines of a streamed answer."""
    begin = time.monotonic()
    keep = fields.get("keep_alive", int, float, str)
    async with state.using(name, read_num_ctx(fields), keep, read_gpu_options(fields)) as loaded:
        start = _Start.after_loading(begin)
        answer = await begin_completion(loaded, way.make_request(fields, loaded))
        async for line in _make_lines(fields, way, answer, start):
            yield encode_line({**make_head(name), **line})


async def _make_lines(
    fields: Fields, way: _Route, answer: Completion, start: _Start
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the object of each line; the last has no text, since clients would skip it there."""
    calls = 0
    async for output in answer:
        if output.parts or output.logprobs:
            yield {**_shape(way, output, calls), "done": False}
            calls += len(output.tool_calls)
        if output.finish is not None:
            end = _make_end(fields, way, output.finish, answer, start)
            yield {**way.shape(_EMPTY, calls), **end}


def _shape(way: _Route, output: CompletionOutput, calls: int) -> dict[str, Any]:
    made = way.shape(output, calls)
    return {**made, "logprobs": format_logprobs(output.logprobs)} if output.logprobs else made


async def _load_only(state: State, name: str, fields: Fields, way: _Route) -> Response:
    """Load a model, or with a ``keep_alive`` of 0 unload it."""
    keep = fields.get("keep_alive", int, float, str)
    if keep is not None and parse_keep_alive(keep) == 0:
        found = state.find(name)
        await state.pool.unload(str(found.entry.name))
        reason = "unload"
    else:
        async with state.using(name, read_num_ctx(fields), keep, read_gpu_options(fields)):
            reason = "load"
    made = {
        **make_head(name),
        **way.shape(_EMPTY, 0),
        "done": True,
        "done_reason": reason,
    }
    return JSONResponse(made)


def _shape_generate(output: CompletionOutput, _: int) -> dict[str, Any]:
    made: dict[str, Any] = {"response": output.content}
    if output.thinking:
        made["thinking"] = output.thinking
    return made


def _shape_chat(output: CompletionOutput, calls: int) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": output.content}
    if output.thinking:
        made["thinking"] = output.thinking
    if output.tool_calls:
        made["tool_calls"] = [
            _format_call(call, i) for i, call in enumerate(output.tool_calls, calls)
        ]
    return {"message": made}


def _format_call(call: ToolCall, index: int) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": dict(call.arguments)}
    return {"id": f"call_{secrets.token_hex(4)}", "function": function}


def _make_end(
    fields: Fields, way: _Route, finish: Finish | None, answer: Completion, start: _Start
) -> dict[str, Any]:
    """Return the fields of the last line: the reason of the end and durations in nanoseconds."""
    assert finish is not None
    usage = finish.usage
    goes_on = way.context and not fields.switch("raw", default=False)
    return {
        "done": True,
        "done_reason": "length" if finish.reason == "length" else "stop",
        "total_duration": _to_nanoseconds(time.monotonic() - start.began),
        "load_duration": _to_nanoseconds(start.load),
        "prompt_eval_count": usage.prompt_tokens or len(answer.request.tokens),
        "prompt_eval_duration": _to_nanoseconds(usage.prompt_seconds),
        "eval_count": usage.completion_tokens,
        "eval_duration": _to_nanoseconds(usage.seconds),
        **({"context": answer.tokens} if goes_on else {}),
    }


def _to_nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def format_logprobs(found: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> list[dict[str, Any]]:
    """Log probabilities as Ollama and OpenAI have them."""
    return [
        {**format_logprob(each), "top_logprobs": [format_logprob(other) for other in each.top]}
        for each in found
    ]


def format_logprob(found: TokenLogprob) -> dict[str, Any]:
    """Log probability of one token."""
    text = found.piece.decode("utf-8", "replace")
    # JSON has no infinity, the logarithm of 0.
    return {"token": text, "logprob": max(found.logprob, -1e4), "bytes": list(found.piece)}


def _describe_loaded(each: Loaded) -> dict[str, Any]:
    left = each.seconds_left
    # A larger difference could pass the last year of `datetime`.
    until = FOR_EVER if left is None else datetime.now(UTC) + timedelta(seconds=min(left, 1e9))
    name = str(each.stored.entry.name)
    return {
        "name": name,
        "model": name,
        "size": each.nbytes,
        "digest": each.stored.entry.digest,
        "details": each.stored.details,
        "expires_at": until.isoformat(),
        "size_vram": each.vram_nbytes,
        "context_length": each.model.num_ctx,
    }


def make_generate_request(fields: Fields, loaded: Loaded) -> CompletionRequest:
    """Build the completion request of a prompt.

    Raises
    ------
    RequestError
    """
    for name, why in (
        *((name, "only models of pictures have it") for name in ("width", "height", "steps")),
        ("template", "templates of a request are not supported, the model's own is used"),
    ):
        fields.refuse(name, why)
    prompt = fields.text("prompt")
    if suffix := fields.text("suffix"):
        between = infill(loaded.model.tokenizer, prompt, suffix)
        return _make_request(fields, loaded, None, prompt=between)
    raw = fields.switch("raw", default=False)
    before = cast("list[int] | None", fields.get("context", list))
    if raw and (fields.text("system") or before):
        raise RequestError(400, "raw mode does not support template, system, or context")
    bare = raw or loaded.model.prompter.template is None
    images = _decode_images("images", fields.get("images", list))
    if bare:
        media = [Part("image", image) for image in images]
        return _make_request(fields, loaded, None, prompt=prompt, media=media, before=before or [])
    messages = _make_conversation(fields, loaded, prompt, before)
    if images:
        messages[-1]["images"] = images
    return _make_request(fields, loaded, messages, prompt=prompt, before=before or [])


def _make_conversation(
    fields: Fields, loaded: Loaded, prompt: str, before: list[int] | None
) -> ChatMessages:
    """Return a conversation that ends with the prompt; `before` replaces the model's own messages.

    The system message is repeated even after `before`, since the request may change it.
    """
    system = fields.text("system", loaded.stored.system)
    own = [] if before is not None else [dict(each) for each in loaded.stored.messages]
    return [*_make_system_message(system), *own, {"role": "user", "content": prompt}]


def make_chat_request(fields: Fields, loaded: Loaded) -> CompletionRequest:
    """Build the completion request of a conversation.

    Raises
    ------
    RequestError
    """
    given = [
        _convert_message(each, number) for number, each in enumerate(fields.objects("messages"))
    ]
    own = [dict(message) for message in loaded.stored.messages]
    begins = given[:1] if given and given[0]["role"] == "system" else []
    first = begins or _make_system_message(loaded.stored.system)
    messages = [*first, *own, *given[len(begins) :]]
    return _make_request(fields, loaded, messages, tools=check_tools(fields.objects("tools")))


def _make_system_message(text: str) -> ChatMessages:
    return [{"role": "system", "content": text}] if text else []


def _convert_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    made = {key: value for key, value in message.items() if key != "images"}
    if images := _decode_images(f"messages[{number}].images", message.get("images")):
        made["images"] = images
    role = made.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(400, f"messages[{number}].role is required, and has to be a text")
    made["role"] = role.lower()
    if "tool_name" in made:
        made["name"] = made["tool_name"]
    if made.get("content") is None:
        made["content"] = ""
    return made


def _decode_images(where: str, given: object) -> list[bytes]:
    """Return the bytes of pictures, which Ollama's clients send as a list of base64."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise RequestError(400, f"{where}: {str(given)[:40]!r}, needs a list of strings in base64")
    items = cast("list[object]", given)
    return [decode_base64(f"{where}[{number}]", item) for number, item in enumerate(items)]


def _make_request(
    fields: Fields,
    loaded: Loaded,
    messages: ChatMessages | None,
    **more: Any,  # noqa: ANN401
) -> CompletionRequest:
    top = fields.get("top_logprobs", int)
    truncate = fields.switch("truncate", default=True)
    logprobs = fields.switch("logprobs", default=False)
    return CompletionRequest(
        messages,
        options=clamp_options(read_options(fields)),
        grammar=format_grammar(fields.get("format", str, dict)),
        think=_read_thinking(fields, loaded, messages),
        truncate=truncate,
        # Ollama leaves out the middle of a prompt whose last message alone is too long.
        cut=truncate,
        shift=fields.switch("shift", default=True),
        engine={"logprobs": (top or 0) if logprobs else None},
        **more,
    )


def _read_thinking(
    fields: Fields, loaded: Loaded, messages: ChatMessages | None
) -> bool | str | None:
    """Return whether to reason first; by default models that can reason do, as in Ollama.

    Not where the operator said what happens then, nor where the answer has begun already.
    """
    given = fields.get("think", bool, str)
    if isinstance(given, str) and given not in _EFFORTS:
        needed = 'must be "high", "medium", "low", "max", true, or false'
        raise RequestError(400, f'invalid think value: "{given[:40]}" ({needed})')
    template = loaded.model.prompter.template
    if given is not None or loaded.defaults.reasons or template is None or not messages:
        return given
    open_ended = messages[-1]["role"] != "assistant"
    return True if open_ended and thinks(template.source) else None


_GENERATE_ROUTE = _Route(make_generate_request, _shape_generate, context=True)
_CHAT_ROUTE = _Route(make_chat_request, _shape_chat)
