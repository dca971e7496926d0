"""Ollama's routes that make text and embeddings: generate, chat, embed, embeddings, ps."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from wgpu_backend.output_parsers import Content, Thinking, ToolCall
from wgpu_backend.server import forms, painting
from wgpu_backend.server.answering import Answer, Said, Update, answer_of
from wgpu_backend.server.embedding import embeddings
from wgpu_backend.server.endpoints import Endpoint
from wgpu_backend.server.fields import Fields
from wgpu_backend.server.forms import Field
from wgpu_backend.server.infilling import infill
from wgpu_backend.server.pool import Loaded
from wgpu_backend.server.serving_state import State, begun, seconds_of, until_gone
from wgpu_backend.server.structured import format_grammar
from wgpu_backend.server.wanted import RequestError, Wanted, message_of, status_of
from wgpu_backend.serving.results import Finish, TokenLogprob

_COMMON = {
    "model": forms.MODEL,
    "stream": forms.STREAM,
    "format": Field((str, dict), "json, or a JSON Schema that the answer has to follow"),
    "keep_alive": forms.DURATION,
    "options": Field((dict,), "sampling options by Ollama's names, and num_ctx"),
    "think": Field((bool, str), "whether to reason first, or how much"),
    "truncate": Field((bool,), "leave out the oldest messages where there is no room"),
    "shift": Field((bool,), "go on where the context is full"),
    "logprobs": Field((bool,), "give log probabilities of tokens"),
    "top_logprobs": forms.LOGPROBS,
}
_GENERATE = {
    **_COMMON,
    "prompt": Field((str,), "text to continue"),
    "suffix": Field((str,), "what comes behind the answer"),
    "system": Field((str,), "in place of the model's own system message"),
    "template": Field((str,), "is refused: the model's own is used"),
    "context": Field((list,), "tokens of what was said before"),
    "raw": Field((bool,), "continue the prompt as it is, without a template"),
    "images": Field((list,), "what a model of pictures begins with; no other reads images"),
    "width": painting.SIDE,
    "height": painting.SIDE,
    "steps": painting.STEPS,
}
_CHAT = {
    **_COMMON,
    "messages": Field((list,), "what was said; where there is nothing, the model is loaded"),
    "tools": forms.TOOLS,
}
_EMBED = {
    "model": forms.MODEL,
    "input": Field((str, list), "a text, or a list of them"),
    "truncate": Field((bool,), "cut texts that are too long"),
    "dimensions": Field((int,), "numbers of each vector", least=1),
    "keep_alive": forms.DURATION,
    "options": forms.OBJECT,
}
_EMBEDDINGS = {
    "model": forms.MODEL,
    "prompt": forms.TEXT,
    "keep_alive": forms.DURATION,
    "options": forms.OBJECT,
}
FOR_EVER = datetime(2318, 1, 1, tzinfo=UTC)  # as far as clients' calendars go
Shape = Callable[[Said], dict[str, Any]]


def endpoints(state: State) -> list[Endpoint]:
    """Endpoints over the models of a state."""

    async def generate(request: Request, fields: Fields) -> Response:
        name = fields.required("model")
        if name in state.studio:
            return await painting.generated(state, request, fields, name)
        return await _answer(state, request, fields, _generate_wanted, _response)

    async def chat(request: Request, fields: Fields) -> Response:
        return await _answer(state, request, fields, _chat_wanted, _message)

    async def embed(_: Request, fields: Fields) -> Response:
        texts = fields.texts("input")
        begin = time.monotonic()
        found = await embeddings(
            state, fields, texts, truncate=fields.switch("truncate", default=True)
        )
        return JSONResponse(
            {
                "model": fields.required("model"),
                "embeddings": found.vectors,
                "total_duration": _ns(time.monotonic() - begin),
                "load_duration": _ns(found.load_seconds),
                "prompt_eval_count": found.tokens,
            }
        )

    async def embeddings_(_: Request, fields: Fields) -> Response:
        text = fields.text("prompt")
        found = await embeddings(state, fields, [text] if text else [], truncate=True)
        return JSONResponse({"embedding": found.vectors[0] if found.vectors else []})

    async def ps(_: Request, __: Fields) -> Response:
        return JSONResponse({"models": [_running(each) for each in state.pool.loaded()]})

    lines = "application/x-ndjson"
    return [
        Endpoint(
            "Ollama", "POST", "/api/generate", "Continue a prompt", generate, _GENERATE, lines
        ),
        Endpoint("Ollama", "POST", "/api/chat", "Answer a conversation", chat, _CHAT, lines),
        Endpoint("Ollama", "POST", "/api/embed", "Vectors of texts", embed, _EMBED),
        Endpoint("Ollama", "POST", "/api/embeddings", "Vector of a text", embeddings_, _EMBEDDINGS),
        Endpoint("Ollama", "GET", "/api/ps", "Models that are loaded", ps),
    ]


def _generate_wanted(fields: Fields, loaded: Loaded) -> Wanted:
    for name, why in (
        ("images", "images are not supported"),
        *((name, "only models of pictures have it") for name in ("width", "height", "steps")),
        ("template", "templates of a request are not supported, the model's own is used"),
    ):
        fields.refuse(name, why)
    prompt = fields.text("prompt")
    if suffix := fields.text("suffix"):
        between = infill(loaded.model.tokenizer, prompt, suffix)
        return _wanted(fields, None, prompt=between)
    raw = fields.switch("raw", default=False) or loaded.model.prompter.template is None
    system = fields.text("system", loaded.stored.system)
    first = [{"role": "system", "content": system}] if system else []
    before = cast("list[int]", fields.get("context", list) or [])
    messages = None if raw else [*first, {"role": "user", "content": prompt}]
    return _wanted(fields, messages, prompt=prompt, before=before)


def _chat_wanted(fields: Fields, loaded: Loaded) -> Wanted:
    messages = [_turn(message) for message in fields.objects("messages")]
    if loaded.stored.system and not any(m["role"] == "system" for m in messages):
        messages.insert(0, {"role": "system", "content": loaded.stored.system})
    first = [dict(message) for message in loaded.stored.messages]
    return _wanted(fields, [*first, *messages], tools=fields.objects("tools"))


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("images"):
        raise RequestError(400, "messages: images are not supported")
    made = {key: value for key, value in message.items() if key != "images"}
    if "tool_name" in made:
        made["name"] = made["tool_name"]
    made.setdefault("content", "")
    return made


def _wanted(fields: Fields, messages: list[dict[str, Any]] | None, **more: Any) -> Wanted:  # noqa: ANN401
    top = fields.get("top_logprobs", int)
    logprobs = fields.switch("logprobs", default=False)
    return Wanted(
        messages,
        options=fields.get("options", dict) or {},
        grammar=format_grammar(fields.get("format", str, dict)),
        think=fields.get("think", bool, str),
        truncate=fields.switch("truncate", default=True),
        shift=fields.switch("shift", default=True),
        logprobs=(top or 0) if logprobs or top else None,
        **more,
    )


async def _answer(
    state: State,
    request: Request,
    fields: Fields,
    make: Callable[[Fields, Loaded], Wanted],
    shape: Shape,
) -> Response:
    name = fields.required("model")
    keep = fields.get("keep_alive", int, float, str)
    if not (fields.text("prompt") or fields.get("messages", list)):
        return await _loaded_alone(state, name, fields, shape)
    lines = _lines(state, name, fields, make, shape)
    if fields.switch("stream", default=True):
        return StreamingResponse(await begun(lines), media_type="application/x-ndjson")

    async def whole() -> dict[str, Any]:
        begin = time.monotonic()
        async with state.using(name, _num_ctx(fields), keep) as loaded:
            answer = await answer_of(loaded, make(fields, loaded))
            [said] = await answer.whole()
            made = shape(said)
            if said.logprobs:
                made["logprobs"] = logprobs_of(said.logprobs)
            return {**_head(name), **made, **_end(loaded, said.finish, begin, answer)}

    return JSONResponse(await until_gone(request, whole()))


async def _lines(
    state: State,
    name: str,
    fields: Fields,
    make: Callable[[Fields, Loaded], Wanted],
    shape: Shape,
) -> AsyncIterator[bytes]:
    """Lines of a streamed answer; what fails in its middle is its last."""
    began = False
    begin = time.monotonic()
    keep = fields.get("keep_alive", int, float, str)
    try:
        async with state.using(name, _num_ctx(fields), keep) as loaded:
            answer = await answer_of(loaded, make(fields, loaded))
            async for update in answer:
                said = Said.nothing()
                said.add(update)
                line = {**_head(name), **shape(said), "done": False}
                if update.logprobs:
                    line["logprobs"] = logprobs_of(update.logprobs)
                if update.finish is not None:
                    line |= _end(loaded, update.finish, begin, answer)
                if update.parts or update.logprobs or update.finish is not None:
                    began = True
                    yield json.dumps(line).encode() + b"\n"
    except Exception as error:
        if not began:
            raise
        yield json.dumps({"error": message_of(error), "status": status_of(error)}).encode() + b"\n"


async def _loaded_alone(state: State, name: str, fields: Fields, shape: Shape) -> Response:
    """Load a model, or with a ``keep_alive`` of 0 unload it."""
    keep = fields.get("keep_alive", int, float, str)
    if keep is not None and seconds_of(keep) == 0:
        found = state.find(name)
        await state.pool.unload(str(found.entry.name))
        reason = "unload"
    else:
        async with state.using(name, _num_ctx(fields), keep):
            reason = "load"
    made = {**_head(name), **shape(Said.nothing()), "done": True, "done_reason": reason}
    return JSONResponse(made)


def _num_ctx(fields: Fields) -> int | None:
    return Fields(fields.get("options", dict) or {}, where="options.").get("num_ctx", int)


def _head(name: str) -> dict[str, Any]:
    return {"model": name, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def _response(said: Said) -> dict[str, Any]:
    made: dict[str, Any] = {"response": said.content}
    if said.thinking:
        made["thinking"] = said.thinking
    return made


def _message(said: Said) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.thinking:
        made["thinking"] = said.thinking
    if said.tool_calls:
        made["tool_calls"] = [
            {"function": {"index": i, "name": call.name, "arguments": dict(call.arguments)}}
            for i, call in enumerate(said.tool_calls)
        ]
    return {"message": made}


def _end(loaded: Loaded, finish: Finish | None, begin: float, answer: Answer) -> dict[str, Any]:
    """What the last line has: why it ended, and what it took, in nanoseconds."""
    assert finish is not None
    usage = finish.usage
    return {
        "done": True,
        "done_reason": "length" if finish.reason == "length" else "stop",
        "total_duration": _ns(time.monotonic() - begin),
        "load_duration": _ns(loaded.load_seconds),
        "prompt_eval_count": usage.prompt_tokens or len(answer.request.tokens),
        "prompt_eval_duration": _ns(usage.prompt_seconds),
        "eval_count": usage.completion_tokens,
        "eval_duration": _ns(usage.seconds),
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def logprobs_of(found: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> list[dict[str, Any]]:
    """Log probabilities as Ollama and OpenAI have them."""
    return [
        {**logprob_of(each), "top_logprobs": [logprob_of(other) for other in each.top]}
        for each in found
    ]


def logprob_of(found: TokenLogprob) -> dict[str, Any]:
    """Log probability of one token."""
    text = found.piece.decode("utf-8", "replace")
    return {"token": text, "logprob": max(found.logprob, -1e4), "bytes": list(found.piece)}


def _running(each: Loaded) -> dict[str, Any]:
    left = each.seconds_left
    until = FOR_EVER if left is None else datetime.now(UTC) + timedelta(seconds=min(left, 1e9))
    name = str(each.stored.entry.name)
    return {
        "name": name,
        "model": name,
        "size": each.nbytes,
        "digest": each.stored.entry.digest,
        "details": each.stored.details,
        "expires_at": until.isoformat(),
        "size_vram": each.nbytes,
        "context_length": each.model.num_ctx,
    }


def parts_of(update: Update) -> tuple[str, str, list[ToolCall]]:
    """Text, reasoning and calls of some news."""
    return (
        "".join(part.text for part in update.parts if isinstance(part, Content)),
        "".join(part.text for part in update.parts if isinstance(part, Thinking)),
        [part for part in update.parts if isinstance(part, ToolCall)],
    )
