"""OpenAI's routes: chat, completions, embeddings, models."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from wgpu_backend.output_parsers import ToolCall
from wgpu_backend.server import forms
from wgpu_backend.server.answering import Said, answer_of
from wgpu_backend.server.chat_turns import turn_of
from wgpu_backend.server.embedding import embeddings
from wgpu_backend.server.endpoints import Endpoint
from wgpu_backend.server.fields import Fields
from wgpu_backend.server.forms import Field
from wgpu_backend.server.ollama import logprobs_of, parts_of
from wgpu_backend.server.serving_state import State, begun, until_gone
from wgpu_backend.server.structured import chosen_tools, response_grammar
from wgpu_backend.server.wanted import RequestError, Wanted, message_of, status_of
from wgpu_backend.serving.results import Usage

_WITHOUT_MEANING = forms.without_meaning(
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier",
    "prompt_cache_key", "keep_alive",
)  # fmt: skip
_COMMON = {
    **_WITHOUT_MEANING,
    "model": forms.MODEL_OR_OWN,
    "stream": forms.STREAM,
    "stream_options": Field((dict,), "include_usage: whether a stream ends with counts"),
    "max_tokens": forms.MOST,
    "temperature": Field((float,), "1 where it is missing", least=0),
    "top_p": Field((float,), least=0, most=1),
    "top_k": forms.WHOLE,
    "min_p": Field((float,), least=0, most=1),
    "seed": forms.WHOLE,
    "stop": forms.STOP,
    "frequency_penalty": forms.NUMBER,
    "presence_penalty": forms.NUMBER,
    "logit_bias": Field((dict,), "added to the logits of tokens, by their ids"),
    "n": forms.CHOICES,
    "ignore_eos": Field((bool,), "go on behind tokens that end a text"),
}
_CHAT = {
    **_COMMON,
    "messages": forms.MESSAGES,
    "tools": forms.TOOLS,
    "tool_choice": Field((str, dict), "auto, none, required, or a function"),
    "response_format": Field((dict,), "what the answer has to look like"),
    "max_completion_tokens": forms.MOST,
    "logprobs": Field((bool,), "give log probabilities of tokens"),
    "top_logprobs": forms.LOGPROBS,
    "reasoning_effort": forms.TEXT,
    "reasoning": Field((dict,), "effort: as reasoning_effort"),
    "chat_template_kwargs": Field((dict,), "variables of the model's own template"),
    **forms.without_meaning("cache_prompt", "id_slot", "timings_per_token", "return_progress"),
    "modalities": Field((list,), "taken, and without meaning here"),
}
_COMPLETIONS = {
    **_COMMON,
    "prompt": Field((str, list), "a text, or tokens", required=True),
    "logprobs": forms.LOGPROBS,
    "suffix": Field((str,), "is refused"),
    "echo": Field((bool,), "is refused"),
    "best_of": forms.WHOLE,
}
_EMBEDDINGS = {
    **_WITHOUT_MEANING,
    "model": forms.MODEL_OR_OWN,
    "input": Field((str, list), "a text, its tokens, or a list of such", required=True),
    "dimensions": Field((int,), "numbers of each vector", least=1),
    "encoding_format": Field((str,), among=("float", "base64")),
}
_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty")


def endpoints(state: State) -> list[Endpoint]:
    """Endpoints over the models of a state."""

    async def chat(request: Request, fields: Fields) -> Response:
        if not fields.get("messages", list):
            raise RequestError(400, "messages: needs at least one")
        return await _answer(state, request, fields, _chat_wanted(fields), _Chat())

    async def completions(request: Request, fields: Fields) -> Response:
        return await _answer(state, request, fields, _completion_wanted(fields), _Completion())

    async def embed(_: Request, fields: Fields) -> Response:
        encoding = fields.text("encoding_format", "float")
        found = await embeddings(state, fields, fields.get("input", str, list), truncate=False)
        data = [
            {"object": "embedding", "index": i, "embedding": _encoded(vector, encoding)}
            for i, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        name = state.named(fields)
        return JSONResponse({"object": "list", "model": name, "data": data, "usage": usage})

    async def models(_: Request, __: Fields) -> Response:
        entries = await run_in_threadpool(lambda: list(state.store.entries()))
        found = [*(each.entry for each in state.settings.fixed.values()), *entries]
        data = [_model(str(entry.name), entry.modified) for entry in found]
        data += [_model(name, modified) for name, modified in state.studio.models().items()]
        return JSONResponse({"object": "list", "data": data})

    async def model(request: Request, _: Fields) -> Response:
        name = request.path_params["name"]
        if name in state.studio:
            return JSONResponse(_model(name, state.studio.models().get(name, 0)))
        found = await run_in_threadpool(state.find, name)
        return JSONResponse(_model(name, found.entry.modified))

    sse = "text/event-stream"
    return [
        Endpoint(
            "OpenAI", "POST", "/v1/chat/completions", "Answer a conversation", chat, _CHAT, sse
        ),
        Endpoint(
            "llama-server", "POST", "/chat/completions", "Answer a conversation", chat, _CHAT, sse
        ),
        Endpoint(
            "OpenAI", "POST", "/v1/completions", "Continue a prompt", completions, _COMPLETIONS, sse
        ),
        Endpoint("OpenAI", "POST", "/v1/embeddings", "Vectors of texts", embed, _EMBEDDINGS),
        Endpoint("OpenAI", "GET", "/v1/models", "Models that there are", models),
        Endpoint("llama-server", "GET", "/models", "Models that there are", models),
        Endpoint("OpenAI", "GET", "/v1/models/{name:path}", "One of them", model),
    ]


def _model(name: str, modified: float) -> dict[str, Any]:
    owner = name.partition("/")[0] if "/" in name else "library"
    return {"id": name, "object": "model", "created": int(modified), "owned_by": owner}


def _encoded(vector: list[float], encoding: str) -> object:
    if encoding == "float":
        return vector
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def _options(fields: Fields, *limits: str) -> dict[str, Any]:
    found: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    found |= {name: v for name in _NUMBERS if (v := fields.get(name, float)) is not None}
    found |= {name: v for name in ("seed", "top_k") if (v := fields.get(name, int)) is not None}
    if stop := fields.texts("stop"):
        found["stop"] = stop
    for name in limits:
        if (limit := fields.get(name, int)) is not None:
            found["num_predict"] = limit
    return found


def _bias(fields: Fields) -> dict[int, float]:
    given: Mapping[str, Any] = fields.get("logit_bias", dict) or {}
    try:
        return {int(token): float(bias) for token, bias in given.items()}
    except (TypeError, ValueError):
        raise RequestError(400, "logit_bias: needs numbers by token ids") from None


def _chat_wanted(fields: Fields) -> Wanted:
    choice = fields.get("tool_choice", str, dict)
    tools, must_call = chosen_tools(choice, fields.objects("tools"))
    logprobs = fields.switch("logprobs", default=False)
    reasoning = Fields(fields.get("reasoning", dict) or {}, where="reasoning.")
    effort = reasoning.text("effort") or fields.text("reasoning_effort") or None
    return Wanted(
        [turn_of(message) for message in fields.objects("messages")],
        options=_options(fields, "max_tokens", "max_completion_tokens"),
        tools=tools,
        must_call=must_call,
        grammar=response_grammar(fields.get("response_format", dict), "response_format"),
        think=False if effort == "none" else effort,
        truncate=False,
        logprobs=(fields.get("top_logprobs", int) or 0) if logprobs else None,
        logit_bias=_bias(fields),
        ignore_eos=fields.switch("ignore_eos", default=False),
        choices=fields.get("n", int) or 1,
        template=fields.get("chat_template_kwargs", dict) or {},
    )


def _completion_wanted(fields: Fields) -> Wanted:
    fields.refuse("suffix", "inserting is not supported")
    fields.refuse("echo", "is not supported")
    return Wanted(
        None,
        _prompt(fields),
        _options(fields, "max_tokens"),
        logprobs=fields.get("logprobs", int),
        logit_bias=_bias(fields),
        ignore_eos=fields.switch("ignore_eos", default=False),
        choices=fields.get("n", int) or 1,
    )


def _prompt(fields: Fields) -> str | list[int]:
    given = fields.get("prompt", str, list)
    if not given:
        raise RequestError(400, "prompt is required")
    if isinstance(given, str):
        return given
    items = cast("list[object]", given)
    if isinstance(items[0], str | list):
        if len(items) > 1:
            raise RequestError(400, "prompt: several at once are not supported, send one each")
        return cast("str | list[int]", items[0])
    return cast("list[int]", items)


class _Chat:
    """Objects of chats."""

    prefix, kind, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def first(self, choice: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": choice, "delta": delta, "finish_reason": None}

    def piece(self, choice: int, said: Said, calls_before: int) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if said.content:
            delta["content"] = said.content
        if said.thinking:
            delta["reasoning"] = said.thinking
            delta["reasoning_content"] = said.thinking
        if said.tool_calls:
            delta["tool_calls"] = [
                {"index": calls_before + i, **_call(call)} for i, call in enumerate(said.tool_calls)
            ]
        return {"index": choice, "delta": delta, **_logprobs(said)}

    def whole(self, choice: int, said: Said) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": said.content or None}
        if not said.tool_calls:
            message["content"] = said.content
        if said.thinking:
            message["reasoning"] = said.thinking
            message["reasoning_content"] = said.thinking
        if said.tool_calls:
            message["tool_calls"] = [_call(call) for call in said.tool_calls]
        return {"index": choice, "message": message, **_logprobs(said)}


class _Completion:
    """Objects of completions."""

    prefix, kind, chunk = "cmpl-", "text_completion", "text_completion"

    def first(self, choice: int) -> dict[str, Any] | None:
        return None

    def piece(self, choice: int, said: Said, calls_before: int) -> dict[str, Any]:
        return {"index": choice, "text": said.content, "logprobs": _old_logprobs(said)}

    def whole(self, choice: int, said: Said) -> dict[str, Any]:
        return self.piece(choice, said, 0)


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments))
    function = {"name": call.name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _logprobs(said: Said) -> dict[str, Any]:
    return {"logprobs": {"content": logprobs_of(said.logprobs)} if said.logprobs else None}


def _old_logprobs(said: Said) -> dict[str, Any] | None:
    if not said.logprobs:
        return None
    found = logprobs_of(said.logprobs)
    return {
        "tokens": [each["token"] for each in found],
        "token_logprobs": [each["logprob"] for each in found],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in found
        ],
    }


def _reason(said: Said, *, called: bool) -> str:
    assert said.finish is not None
    if said.finish.reason == "length":
        return "length"
    return "tool_calls" if called else "stop"


def _usage(found: list[Usage]) -> dict[str, Any]:
    prompt, made = found[0].prompt_tokens, sum(usage.completion_tokens for usage in found)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": found[0].cached_tokens},
    }


async def _answer(
    state: State, request: Request, fields: Fields, wanted: Wanted, form: _Chat | _Completion
) -> Response:
    name = state.named(fields)
    head = {
        "id": f"{form.prefix}{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": "fp_wgpu_backend",
    }
    if fields.switch("stream", default=False):
        options = Fields(fields.get("stream_options", dict) or {}, where="stream_options.")
        counts = options.switch("include_usage", default=False)
        lines = _events(state, name, wanted, form, {**head, "object": form.chunk}, counts=counts)
        return StreamingResponse(await begun(lines), media_type="text/event-stream")

    async def whole() -> dict[str, Any]:
        async with state.using(name) as loaded:
            said = await (await answer_of(loaded, wanted)).whole()
        choices = [
            {**form.whole(i, each), "finish_reason": _reason(each, called=bool(each.tool_calls))}
            for i, each in enumerate(said)
        ]
        usage = _usage([each.finish.usage for each in said if each.finish is not None])
        return {**head, "object": form.kind, "choices": choices, "usage": usage}

    return JSONResponse(await until_gone(request, whole()))


async def _events(
    state: State,
    name: str,
    wanted: Wanted,
    form: _Chat | _Completion,
    head: dict[str, Any],
    *,
    counts: bool,
) -> AsyncIterator[bytes]:
    """Events of a streamed answer."""
    calls, usages = [0] * wanted.choices, list[Usage]()
    began: set[int] = set()

    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:  # noqa: ANN401
        return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"

    try:
        async with state.using(name) as loaded:
            async for told in await answer_of(loaded, wanted):
                first = None if told.choice in began else form.first(told.choice)
                began.add(told.choice)
                if first is not None:
                    yield event([first])
                said = Said.nothing()
                said.add(told)
                if any(parts_of(told)) or told.logprobs:
                    piece = form.piece(told.choice, said, calls[told.choice])
                    yield event([{**piece, "finish_reason": None}])
                calls[told.choice] += len(said.tool_calls)
                if told.finish is not None:
                    usages.append(told.finish.usage)
                    last = form.piece(told.choice, Said.nothing(), 0)
                    reason = _reason(said, called=bool(calls[told.choice]))
                    yield event([{**last, "finish_reason": reason}])
    except Exception as error:
        if not began:
            raise
        told_error = {"message": message_of(error), "code": status_of(error)}
        yield b"data: " + json.dumps({"error": told_error}).encode() + b"\n\n"
        return
    if counts:
        yield event([], usage=_usage(usages))
    yield b"data: [DONE]\n\n"
