"""OpenAI's routes: chat, completions, embeddings, models."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.batching.results import TokenLogprob, Usage
from wgpu_backend.files.store.stored import Stored
from wgpu_backend.server.api.embeddings import compute_embeddings
from wgpu_backend.server.api.ollama.routes import format_logprob, format_logprobs
from wgpu_backend.server.api.openai.schema import (
    CHAT,
    COMPLETIONS,
    COUNTED,
    EMBEDDINGS,
    make_chat_request,
    make_completion_request,
    make_prompt_requests,
)
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import (
    Completion,
    CompletionOutput,
    begin_completions,
    count_prompt,
)
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.model_capabilities import find_files, list_capabilities
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest, RequestError
from wgpu_backend.server.core.sse import encode_data
from wgpu_backend.server.core.state import State, cancel_when_gone, start_stream
from wgpu_backend.server.core.timings import Pace, make_timings
from wgpu_backend.text.output_parsers import ToolCall
from wgpu_backend.text.tokenizer.pieces import Detokenizer

_MakeRequests = Callable[[Loaded], Sequence[CompletionRequest]]
"""A function that makes the completion requests for a model: one for each prompt."""
_Columns = dict[str, list[Any]]
# Anthropic's clients send it with every request; their list of models has the same path.
_ANTHROPIC = "anthropic-version"


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def chat(request: Request, fields: Fields) -> Response:
        # llama-server's first piece has null as its text.
        own = request.url.path == "/chat/completions"
        form = _Chat(None if own else "")
        chat_request = make_chat_request(fields)
        return await _answer(state, request, fields, lambda _: [chat_request], form)

    async def count(_: Request, fields: Fields) -> Response:
        chat_request = make_chat_request(fields)
        async with state.using(state.get_model_name(fields), "any") as loaded:
            tokens = await count_prompt(loaded, chat_request)
        return JSONResponse({"input_tokens": tokens})

    async def completions(request: Request, fields: Fields) -> Response:
        each = partial(make_prompt_requests, fields, make_completion_request(fields))
        return await _answer(state, request, fields, each, CompletionObjects())

    async def embed(request: Request, fields: Fields) -> Response:
        encoding = fields.text("encoding_format", "float")
        given = fields.get("input", str, list, dict)
        if given is None or given == []:
            raise RequestError(400, "input is required")
        found = await compute_embeddings(request, state, fields, given, truncate=False)
        data = [
            {"object": "embedding", "index": i, "embedding": _encode_vector(vector, encoding)}
            for i, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        name = state.get_model_name(fields)
        return JSONResponse({"object": "list", "model": name, "data": data, "usage": usage})

    async def models(request: Request, _: Fields) -> Response:
        data = await run_in_threadpool(
            _list_own_model if state.settings.any_name else _list_models, state
        )
        listed = [_describe_for_llama_server(each) for each in data]
        if _ANTHROPIC in request.headers:
            data = [{**each, **_describe_for_anthropic(each)} for each in data]
            ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
            return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})
        return JSONResponse({"object": "list", "data": data, "models": listed})

    async def model(request: Request, _: Fields) -> Response:
        name = request.path_params["name"]
        if name in state.image_queue:
            return JSONResponse(_describe_pipeline(name, state.image_queue.models().get(name, 0)))
        found = await run_in_threadpool(lambda: _describe_stored(state.find(name)))
        extra = _describe_for_anthropic(found) if _ANTHROPIC in request.headers else {}
        return JSONResponse({**found, **extra, "id": name})

    sse = "text/event-stream"
    return [
        Endpoint(
            "OpenAI", "POST", "/v1/chat/completions", "Answer a conversation", chat, CHAT, sse
        ),
        Endpoint(
            "llama-server", "POST", "/chat/completions", "Answer a conversation", chat, CHAT, sse
        ),
        *(
            Endpoint("llama-server", "POST", path, "Tokens of a conversation", count, COUNTED)
            for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens")
        ),
        Endpoint(
            "OpenAI", "POST", "/v1/completions", "Continue a prompt", completions, COMPLETIONS, sse
        ),
        Endpoint("OpenAI", "POST", "/v1/embeddings", "Vectors of texts", embed, EMBEDDINGS),
        Endpoint("OpenAI", "GET", "/v1/models", "List of models", models),
        Endpoint("llama-server", "GET", "/models", "List of models", models),
        Endpoint("OpenAI", "GET", "/v1/models/{name:path}", "One model", model),
    ]


def _list_models(state: State) -> list[dict[str, Any]]:
    """List all models; the server's own has its aliases and tags."""
    store = state.store
    found = [_describe_stored(each) for each in state.settings.fixed.values()]
    found += [
        _describe_model(str(entry.name), entry.modified, *find_files(store, entry))
        for entry in store.entries()
    ]
    if (state.settings.aliases or state.settings.tags) and (own := state.find_default()):
        name, extra = str(own.entry.name), _list_aliases(state)
        found = [{**each, **extra} if each["id"] == name else each for each in found]
    return [*found, *(_describe_pipeline(*each) for each in state.image_queue.models().items())]


def _list_own_model(state: State) -> list[dict[str, Any]]:
    """List the model that answers under any name; nothing if it was removed."""
    own = state.find_default()
    return [{**_describe_stored(own), "id": state.own_name, **_list_aliases(state)}] if own else []


def _list_aliases(state: State) -> dict[str, Any]:
    settings = state.settings
    return {"aliases": sorted(settings.aliases), "tags": sorted(settings.tags)}


def _describe_stored(stored: Stored) -> dict[str, Any]:
    entry = stored.entry
    return _describe_model(str(entry.name), entry.modified, stored.path, stored.projector)


def _describe_pipeline(name: str, modified: float) -> dict[str, Any]:
    return {**_describe_model(name, modified), "capabilities": ["image"]}


def _describe_model(
    name: str, modified: float, path: Path | None = None, projector: Path | None = None
) -> dict[str, Any]:
    owner = name.partition("/")[0] if "/" in name else "library"
    can = list_capabilities(path, projector)
    made = {"id": name, "object": "model", "created": int(modified), "owned_by": owner}
    # In Ollama's words; OpenAI's list has no such field.
    return {**made, "capabilities": can}


def _describe_for_llama_server(model: dict[str, Any]) -> dict[str, Any]:
    """Return a model as llama-server lists it next to OpenAI's list, in its own words."""
    can: list[str] = model["capabilities"]
    reads = "vision" in can or "audio" in can
    return {
        "name": model["id"],
        "model": model["id"],
        "type": "model",
        "tags": model.get("tags", []),
        "capabilities": [*can, "multimodal"] if reads else can,
    }


def _describe_for_anthropic(model: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that Anthropic's list of models has in place of OpenAI's."""
    made = datetime.fromtimestamp(model["created"], UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "display_name": model["id"], "created_at": made}


def _encode_vector(vector: list[float], encoding: str) -> object:
    if encoding == "float":
        return vector
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


class _Chat:
    """Objects of chats."""

    prefix, kind, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    # In pieces before the last. OpenAI has a null there; llama-server, Ollama and vLLM have no
    # field, and clients written for these take any piece that has it for the last.
    uncounted: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, nothing: str | None) -> None:
        self._nothing = nothing

    def first(self, choice: int, answer: Completion) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": self._nothing}
        return {"index": choice, "delta": delta, "finish_reason": None}

    def piece(self, choice: int, output: CompletionOutput, calls_before: int) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if output.content:
            delta["content"] = output.content
        if output.thinking:
            delta |= _format_thinking(output)
        if output.tool_calls:
            delta["tool_calls"] = [
                {"index": calls_before + i, **_format_call(call)}
                for i, call in enumerate(output.tool_calls)
            ]
        return {"index": choice, "delta": delta, **_format_logprobs(output)}

    def whole(self, choice: int, output: CompletionOutput, answer: Completion) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": output.content or None}
        if not output.tool_calls:
            message["content"] = output.content
        if output.thinking:
            message |= _format_thinking(output)
        if output.tool_calls:
            message["tool_calls"] = [_format_call(call) for call in output.tool_calls]
        return {"index": choice, "message": message, **_format_logprobs(output)}


def _format_thinking(output: CompletionOutput) -> dict[str, Any]:
    # OpenRouter's and vLLM's name, and DeepSeek's and llama-server's.
    return {"reasoning": output.thinking, "reasoning_content": output.thinking}


def _format_call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments))
    function = {"name": call.name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _format_logprobs(output: CompletionOutput) -> dict[str, Any]:
    return {"logprobs": {"content": format_logprobs(output.logprobs)} if output.logprobs else None}


def _make_finish_reason(output: CompletionOutput, *, called: bool) -> str:
    assert output.finish is not None
    if output.finish.reason == "length":
        return "length"
    return "tool_calls" if called else "stop"


def _make_usage(answers: Sequence[Completion], found: Sequence[Usage]) -> dict[str, Any]:
    """Count the tokens of completions; choices of one completion share its prompt."""
    prompt = sum(len(answer.request.tokens) for answer in answers)
    made = sum(usage.completion_tokens for usage in found)
    size = len(found) // len(answers)
    each = (found[at : at + size] for at in range(0, len(found), size))
    # Later choices share the first one's prompt, so the smallest count is the cache's.
    cached = sum(min(usage.cached_tokens for usage in usages) for usages in each)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def _answer(
    state: State,
    request: Request,
    fields: Fields,
    make_requests: _MakeRequests,
    form: _Chat | CompletionObjects,
) -> Response:
    name = state.get_model_name(fields)
    head = {
        "id": f"{form.prefix}{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": "fp_wgpu_backend",
    }
    if fields.switch("stream", default=False):
        options = Fields(fields.get("stream_options", dict) or {}, where="stream_options.")
        counts = options.switch("include_usage", default=False)
        head |= {"object": form.chunk, **(form.uncounted if counts else {})}
        lines = _stream_events(state, fields, make_requests, form, head, counts=counts)
        return await start_stream(request, lines, "text/event-stream", _make_error_event)

    async def collect() -> dict[str, Any]:
        async with (
            state.using(name) as loaded,
            begin_completions(loaded, await run_in_threadpool(make_requests, loaded)) as answers,
        ):
            made = [(answer, each) for answer in answers for each in await answer.collect()]
        choices = [
            {
                **form.whole(i, each, answer),
                "finish_reason": _make_finish_reason(each, called=bool(each.tool_calls)),
            }
            for i, (answer, each) in enumerate(made)
        ]
        usages = [each.finish.usage for _, each in made if each.finish is not None]
        found = {
            **head,
            "object": form.kind,
            "choices": choices,
            "usage": _make_usage(answers, usages),
        }
        return {**found, **_make_llama_fields(answers[-1], usages, fields, state)}

    return JSONResponse(await cancel_when_gone(request, collect()))


def _make_llama_fields(
    answer: Completion, usages: list[Usage], fields: Fields, state: State
) -> dict[str, Any]:
    """Return the fields that llama-server adds to OpenAI's answers."""
    found: dict[str, Any] = {"timings": make_timings(len(answer.request.tokens), usages[-1])}
    if fields.switch("verbose", default="verbose" in state.settings.shows):
        found["__verbose"] = {"prompt": answer.prompt}
    return found


async def _stream_events(
    state: State,
    fields: Fields,
    make_requests: _MakeRequests,
    form: _Chat | CompletionObjects,
    head: dict[str, Any],
    *,
    counts: bool,
) -> AsyncGenerator[bytes]:
    """Yield the events of a streamed answer."""
    calls, usages = Counter[int](), list[Usage]()
    paces = defaultdict[int, Pace](lambda: Pace.from_fields(fields))
    began: set[int] = set()

    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:  # noqa: ANN401
        return encode_data({**head, "choices": choices, **more})

    async with (
        state.using(state.get_model_name(fields)) as loaded,
        begin_completions(loaded, await run_in_threadpool(make_requests, loaded)) as answers,
    ):
        async for answer, choice, output in _iterate_in_order(answers):
            first = None if choice in began else form.first(choice, answer)
            began.add(choice)
            if first is not None:
                yield event([first])
            extra = paces[choice].get_fields(len(answer.request.tokens), output)
            says = output.content or output.thinking or output.tool_calls or output.logprobs
            if says or (output.reading and extra):
                piece = form.piece(choice, output, calls[choice])
                yield event([{**piece, "finish_reason": None}], **extra)
            calls[choice] += len(output.tool_calls)
            if output.finish is not None:
                usages.append(output.finish.usage)
                last = form.piece(choice, CompletionOutput(choice), 0)
                reason = _make_finish_reason(output, called=bool(calls[choice]))
                extra = _make_llama_fields(answer, usages, fields, state)
                yield event([{**last, "finish_reason": reason}], **extra)
    if counts:
        extra = _make_llama_fields(answers[-1], usages, fields, state)
        yield event([], usage=_make_usage(answers, usages), **extra)
    # OpenAI ends streams with this line, which is not JSON.
    yield b"data: [DONE]\n\n"


def _make_error_event(status: int, message: str) -> bytes:
    """Return the last event of a stream that fails."""
    return encode_data({"error": {"message": message, "code": status}})


async def _iterate_in_order(
    answers: Sequence[Completion],
) -> AsyncIterator[tuple[Completion, int, CompletionOutput]]:
    """Yield the outputs of completions in a row, with choices numbered over all of them."""
    for number, answer in enumerate(answers):
        async for output in answer:
            yield answer, number * answer.request.n + output.choice, output


class CompletionObjects:
    """A maker of the JSON objects of text completions, with each choice's character offset."""

    prefix, kind, chunk = "cmpl-", "text_completion", "text_completion"
    uncounted: ClassVar[Mapping[str, Any]] = {"usage": None}  # as OpenAI's

    def __init__(self) -> None:
        self._given: dict[int, tuple[Detokenizer, int]] = {}

    def first(self, choice: int, answer: Completion) -> dict[str, Any] | None:
        """Return the prompt, if the request asks for it."""
        self._given[choice] = answer.tokenizer.stream(), 0
        if not answer.echo:
            return None
        text = _spell_prompt(answer)
        self._given[choice] = answer.tokenizer.stream(), len(text)
        judged = _make_prompt_columns(answer, text) if answer.request.prompt_logprobs else None
        return {"index": choice, "text": text, "logprobs": judged, "finish_reason": None}

    def piece(self, choice: int, output: CompletionOutput, calls_before: int) -> dict[str, Any]:
        """Return a piece of text and its tokens; a completion calls no tools."""
        logprobs = self._read_columns(choice, output.logprobs) if output.logprobs else None
        return {"index": choice, "text": output.content, "logprobs": logprobs}

    def whole(self, choice: int, output: CompletionOutput, answer: Completion) -> dict[str, Any]:
        """Return a whole choice."""
        begun = self.first(choice, answer)
        made = self.piece(choice, output, 0)
        if begun is None:
            return made
        both = [each["logprobs"] for each in (begun, made) if each["logprobs"]]
        names = both[0] if both else ()
        joined = {name: [value for each in both for value in each[name]] for name in names}
        return {**made, "text": begun["text"] + made["text"], "logprobs": joined or None}

    def _read_columns(self, choice: int, found: Sequence[TokenLogprob]) -> _Columns:
        """Return the columns of an answer's tokens."""
        detokenizer, begin = self._given[choice]
        sizes = [len(detokenizer.push(each.token)) for each in found]
        *offsets, end = accumulate(sizes, initial=begin)
        self._given[choice] = detokenizer, end
        return _make_columns(found, offsets)


def _make_prompt_columns(answer: Completion, text: str) -> _Columns:
    """Return the columns of a prompt; its first token has no predecessor."""
    tokenizer, tokens = answer.tokenizer, answer.request.tokens
    first = TokenLogprob(tokens[0], 0.0, tokenizer.token_bytes(tokens[0]))
    detokenizer = tokenizer.stream(skip_special=False)
    sizes = [len(detokenizer.push(token)) for token in tokens]
    # The text leaves BOS out, so BOS has no width.
    sizes[0] *= tokens[0] != tokenizer.bos_id
    ends = [*accumulate(sizes, initial=0)]
    # Some tokenizers drop the space of the first word, so offsets move back by one.
    dropped = max(ends[-1] + len(detokenizer.flush()) - len(text), 0)
    offsets = [max(end - dropped, 0) for end in ends[:-1]]
    found = _make_columns([first, *answer.prompt_logprobs], offsets)
    found["token_logprobs"][0] = found["top_logprobs"][0] = None
    return found


def _spell_prompt(answer: Completion) -> str:
    """Return the text of a prompt's tokens, without BOS."""
    tokens = [*answer.request.tokens]
    begins = tokens[0] == answer.tokenizer.bos_id
    return answer.tokenizer.decode(tokens[begins:], skip_special=False)


def _make_columns(found: Iterable[TokenLogprob], offsets: Iterable[int]) -> _Columns:
    """Return the columns of tokens; the most likely tokens include the one that was chosen."""
    made: _Columns = {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [*offsets],
    }  # fmt: skip
    for each in found:
        text, logprob = _spell_token(each)
        top: dict[str, float] = {}
        for name, value in map(_spell_token, (*each.top, each)):
            top.setdefault(name, value)
        made["tokens"].append(text)
        made["token_logprobs"].append(logprob)
        made["top_logprobs"].append(top)
    return made


def _spell_token(each: TokenLogprob) -> tuple[str, float]:
    """Return a token's text and log probability; incomplete characters become bytes in hex."""
    # OpenAI spells incomplete characters as ``bytes:\xe2``.
    found = format_logprob(each)
    try:
        return each.piece.decode(), found["logprob"]
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in each.piece), found["logprob"]
