"""llama-server's own routes that make text: completion and infill."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.batching.results import Finish, TokenLogprob
from wgpu_backend.server.api import peer_fields
from wgpu_backend.server.api.llama_server import sampling
from wgpu_backend.server.api.llama_server.infill import Gap
from wgpu_backend.server.api.llama_server.prompts import ParsedPrompt, parse_biases, parse_prompts
from wgpu_backend.server.api.llama_server.sampling import DEFAULTS
from wgpu_backend.server.api.ollama.routes import format_logprob
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import Completion, CompletionOutput, begin_completions
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.engine_request import require_short
from wgpu_backend.server.core.errors import make_error_body
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.sse import encode_data
from wgpu_backend.server.core.state import State, cancel_when_gone, start_stream
from wgpu_backend.server.core.timings import Pace, make_timings, needs_progress
from wgpu_backend.text.tokenizer import Tokenizer

_SAMPLING = {
    **peer_fields.FORM,
    **schema.ignore_fields(
        "cache_prompt", "n_cache_reuse", "n_keep", "n_discard", "sse_ping_interval",
        "stream_options", "reasoning_format", "t_max_prompt_ms",
    ),
    **sampling.FORM,
    "model": schema.MODEL_OR_OWN,
    "stream": schema.STREAM,
    "n_cmpl": schema.CHOICES,
    "n": schema.CHOICES,
    "logit_bias": Field((list, dict), "pairs of a token or a text, and a number or false"),
    "post_sampling_probs": Field(
        (bool,), "return probabilities after all sampling options"
    ),
    "id_slot": schema.SLOT,
    "timings_per_token": schema.TIMINGS,
    "return_tokens": Field((bool,), "return the tokens as well"),
    "return_progress": schema.PROGRESS,
    "response_fields": Field((list,), "paths of the fields to return; default all"),
}  # fmt: skip
_PROMPT = Field(
    (str, list, dict),
    "a text, tokens, both mixed, several prompts, or prompt_string with multimodal_data",
    required=True,
    empty=True,
)
_COMPLETION = {**_SAMPLING, "prompt": _PROMPT}
_INFILL = {
    **_SAMPLING,
    "input_prefix": Field((str,), "text before the gap"),
    "input_suffix": Field((str,), "text after the gap"),
    "input_extra": Field((list,), "other files: objects of filename and text"),
    "prompt": Field((str,), "beginning of the missing text"),
}
_EXTRA = {"filename": schema.TEXT, "text": Field((str,), required=True)}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def complete(request: Request, fields: Fields) -> Response:
        return await _answer(state, request, fields, _read_prompts)

    async def fill(request: Request, fields: Fields) -> Response:
        return await _answer(state, request, fields, _read_gap)

    api, sse = "llama-server", "text/event-stream"
    return [
        *(
            Endpoint(api, "POST", path, "Continue a prompt", complete, _COMPLETION, sse)
            for path in ("/completion", "/completions")
        ),
        Endpoint(api, "POST", "/infill", "Fill a gap in a text", fill, _INFILL, sse),
    ]


def _read_prompts(fields: Fields, loaded: Loaded) -> tuple[list[ParsedPrompt], bool]:
    given = fields.get("prompt", str, list, dict)
    if isinstance(given, str):
        require_short(given, loaded)
    return parse_prompts(given, loaded.model.tokenizer)


def _read_gap(fields: Fields, loaded: Loaded) -> tuple[list[ParsedPrompt], bool]:
    files: list[tuple[str, str]] = []
    for number, item in enumerate(fields.objects("input_extra")):
        extra = Fields(item, _EXTRA, f"input_extra[{number}].")
        files.append((extra.text("filename", "tmp"), extra.text("text")))
    prefix, suffix = fields.text("input_prefix"), fields.text("input_suffix")
    gap = Gap(prefix, suffix, fields.text("prompt"), files)
    limit: int = peer_fields.read_sampling(fields).get("num_predict", -1)
    model = loaded.model
    return [ParsedPrompt(gap.tokens(model.tokenizer, model.num_ctx, limit))], False


@dataclass(frozen=True, slots=True)
class _TextOptions:
    """The fields of a request that shape its answer, and its sampling options."""

    name: str
    options: Mapping[str, Any]
    tokens: bool
    paths: Sequence[str]
    slot: int


async def _answer(state: State, request: Request, fields: Fields, given: Any) -> Response:  # noqa: ANN401
    options = peer_fields.read_sampling(fields)
    asked = _TextOptions(
        state.get_model_name(fields),
        options,
        fields.switch("return_tokens", default=False),
        fields.texts("response_fields"),
        -1 if (slot := fields.get("id_slot", int)) is None else slot,
    )
    if fields.switch("stream", default=False):
        lines = _stream_events(state, fields, asked, given)
        return await start_stream(request, lines, "text/event-stream", _make_error_event)

    async def whole() -> list[dict[str, Any]] | dict[str, Any]:
        async with state.using(asked.name) as loaded:
            found, several = await run_in_threadpool(given, fields, loaded)
            made = await _answer_all(
                [_make_request(fields, loaded, asked, each) for each in found], loaded, asked
            )
        ended = [each for choices in made for each in choices]
        for index, each in enumerate(ended):
            # Numbered over all prompts, as in llama-server.
            each["index"] = index
        picked = [_pick_fields(each, asked.paths) for each in ended]
        return picked if several or len(picked) > 1 else picked[0]

    return JSONResponse(await cancel_when_gone(request, whole()))


async def _answer_all(
    requests: Sequence[CompletionRequest], loaded: Loaded, asked: _TextOptions
) -> list[list[dict[str, Any]]]:
    """Answer several prompts at once; where one fails, all end."""
    tokenizer = loaded.model.tokenizer
    async with begin_completions(loaded, requests) as answers:
        return await asyncio.gather(*(_collect(answer, asked, tokenizer) for answer in answers))


async def _merge_outputs(
    answers: Sequence[Completion],
) -> AsyncGenerator[tuple[int, CompletionOutput]]:
    """Yield the outputs of several completions as they come, with the number of each completion."""
    if len(answers) == 1:
        # Without a task for each token.
        async for output in answers[0]:
            yield 0, output
        return
    sources = [aiter(answer) for answer in answers]
    waiting = {_request_next(source): number for number, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                number, output = waiting.pop(each), each.result()
                if output is not None:
                    waiting[_request_next(sources[number])] = number
                    yield number, output
    finally:
        for each in waiting:
            each.cancel()


def _request_next(
    source: AsyncIterator[CompletionOutput],
) -> asyncio.Future[CompletionOutput | None]:
    return asyncio.ensure_future(anext(source, None))


def _make_request(
    fields: Fields, loaded: Loaded, asked: _TextOptions, prompt: ParsedPrompt
) -> CompletionRequest:
    own = loaded.stored.parameters
    request = CompletionRequest(
        None,
        prompt.given,
        asked.options,
        # The parameters of the model's file come before llama-server's defaults.
        {name: value for name, value in DEFAULTS.items() if name not in own},
        engine={
            "logprobs": sampling.read_probabilities(fields),
            "logit_bias": parse_biases(
                fields.get("logit_bias", list, dict), loaded.model.tokenizer
            ),
            "n": fields.get("n_cmpl", int) or fields.get("n", int) or 1,
            "sampled": fields.switch("post_sampling_probs", default=False),
            "progress": needs_progress(fields),
        },
        slot=schema.parse_slot(fields.get("id_slot", int)),
        media=prompt.media,
    )
    return peer_fields.apply_peer_fields(fields, request)


@dataclass(slots=True)
class _Text:
    """One text as far as it was received, without the tokens of a stop text."""

    tokenizer: Tokenizer
    pace: Pace = field(default_factory=lambda: Pace(progress=False, times=False))
    output: CompletionOutput = field(default_factory=lambda: CompletionOutput(0))

    def add(self, added: CompletionOutput) -> CompletionOutput:
        """Add an output, and return it without the tokens of a stop text."""
        output, before = self.output, len(self.output.tokens)
        output.add(added)
        if added.finish is None or added.finish.stop is None:
            return added
        size = max(before, self._count_spelling())
        news = size - before
        added = replace(added, tokens=added.tokens[:news], logprobs=added.logprobs[:news])
        del output.tokens[size:]
        if output.logprobs:
            del output.logprobs[size:]
        return added

    def _count_spelling(self) -> int:
        """Return how many tokens spell the text."""
        content, tokens = self.output.content, self.output.tokens
        stream, size = self.tokenizer.stream(), 0
        for count, token in enumerate(tokens):
            if size >= len(content):
                return count
            size += len(stream.push(token))
        return len(tokens)


async def _collect(
    answer: Completion, asked: _TextOptions, tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    made = [_Text(tokenizer) for _ in range(answer.request.n)]
    ends: dict[int, Finish] = {}
    async for output in answer:
        made[output.choice].add(output)
        if output.finish is not None:
            ends[output.choice] = output.finish
    found: list[dict[str, Any]] = []
    for choice, each in enumerate(made):
        ended = _make_end(answer, asked, each, ends[choice])
        tokens = each.output.tokens if asked.tokens else list[int]()
        if answer.request.logprobs:
            ended["completion_probabilities"] = _format_probabilities(each.output.logprobs, answer)
        found.append({**ended, "content": each.output.content, "tokens": tokens})
    return found


async def _stream_events(
    state: State,
    fields: Fields,
    asked: _TextOptions,
    given: Any,  # noqa: ANN401
) -> AsyncGenerator[bytes]:
    """Yield the events of a streamed text."""
    async with state.using(asked.name) as loaded:
        found, _ = await run_in_threadpool(given, fields, loaded)
        requests = [_make_request(fields, loaded, asked, each) for each in found]
        async with begin_completions(loaded, requests) as answers:
            made = [
                [
                    _Text(loaded.model.tokenizer, Pace.from_fields(fields))
                    for _ in range(answer.request.n)
                ]
                for answer in answers
            ]
            async for number, output in _merge_outputs(answers):
                answer, texts = answers[number], made[number]
                index = number * len(texts) + output.choice
                for data in _make_pieces(answer, asked, texts[output.choice], output):
                    yield encode_data({**data, "index": index})


def _make_error_event(status: int, message: str) -> bytes:
    """Return the last event of a stream that fails."""
    return encode_data(make_error_body("llama-server", status, message))


def _make_pieces(
    answer: Completion, asked: _TextOptions, text: _Text, output: CompletionOutput
) -> list[dict[str, Any]]:
    """Return the objects of an output: a piece, and the end."""
    news, found = text.add(output), list[dict[str, Any]]()
    content, prompt = news.content, len(answer.request.tokens)
    extra = text.pace.get_fields(prompt, output)
    if output.reading is not None:
        return [{"content": "", "tokens": [], "stop": False, **extra}] if extra else []
    if content or news.tokens:
        piece: dict[str, Any] = {"content": content, "tokens": news.tokens, "stop": False}
        piece |= {"id_slot": asked.slot}
        piece |= extra
        piece |= {"tokens_predicted": len(text.output.tokens), "tokens_evaluated": prompt}
        if answer.request.logprobs:
            piece["completion_probabilities"] = _format_probabilities(news.logprobs, answer)
        found.append(piece)
    if output.finish is not None:
        ended: dict[str, Any] = {
            **_make_end(answer, asked, text, output.finish),
            "content": "",
            "tokens": [],
        }
        found.append(_pick_fields(ended, asked.paths))
    return found


def _make_end(
    answer: Completion, asked: _TextOptions, text: _Text, finish: Finish
) -> dict[str, Any]:
    """Return the fields that end a completion, except its text."""
    usage, prompt = finish.usage, len(answer.request.tokens)
    # llama-server's names.
    kind = "limit" if finish.reason == "length" else "eos" if finish.stop is None else "word"
    found: dict[str, Any] = {
        "index": 0,
        "id_slot": asked.slot,
        "stop": True,
        "model": asked.name,
        "tokens_predicted": usage.completion_tokens,
        "tokens_evaluated": prompt,
        "tokens_cached": usage.cached_tokens,
        "generation_settings": _make_settings(answer),
        "prompt": answer.prompt,
        "has_new_line": "\n" in text.output.content,
        "truncated": finish.context_full,
        "stop_type": kind,
        "stopping_word": finish.stop or "",
        "timings": make_timings(prompt, finish.usage),
    }
    return found


def _make_settings(answer: Completion) -> dict[str, Any]:
    request, options = answer.request, answer.request.options
    found = {name: getattr(options, name) for name in DEFAULTS}
    limit = -1 if request.max_tokens is None else request.max_tokens
    return {
        **found,
        "n_predict": limit,
        "max_tokens": limit,
        "n_keep": request.keep,
        "stop": [*request.stop],
        "ignore_eos": request.ignore_eos,
        "n_probs": request.logprobs or 0,
        "logit_bias": [
            # JSON has no infinity.
            {"token": token, "bias": None if bias == float("-inf") else bias}
            for token, bias in answer.biases.items()
        ],
    }


def _format_probabilities(
    found: Sequence[TokenLogprob], answer: Completion
) -> list[dict[str, Any]]:
    many, one = (
        ("top_probs", _format_probability)
        if answer.request.sampled
        else ("top_logprobs", _format_logprob)
    )
    return [{**one(each), many: [one(other) for other in each.top]} for each in found]


def _format_logprob(found: TokenLogprob) -> dict[str, Any]:
    return {"id": found.token, **format_logprob(found)}


def _format_probability(found: TokenLogprob) -> dict[str, Any]:
    named = {name: value for name, value in _format_logprob(found).items() if name != "logprob"}
    return {**named, "prob": math.exp(found.logprob)}


def _pick_fields(whole: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return only the fields that a request selected by their paths."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for name in path.split("/"):
            inner = cast("dict[str, Any]", value if isinstance(value, dict) else {})
            value = inner.get(name)
        if value is not None:
            found[path] = value
    return found if paths else whole
