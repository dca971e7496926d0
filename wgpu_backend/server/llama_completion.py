"""llama-server's own routes that make text: completion and infill."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from wgpu_backend.server import forms
from wgpu_backend.server.answering import Answer, Update, answer_of, require_short
from wgpu_backend.server.endpoints import Endpoint
from wgpu_backend.server.failures import error_body
from wgpu_backend.server.fields import Fields
from wgpu_backend.server.forms import Field
from wgpu_backend.server.infilling import infill
from wgpu_backend.server.llama_prompts import biases, prompts
from wgpu_backend.server.ollama import logprob_of
from wgpu_backend.server.pool import Loaded
from wgpu_backend.server.serving_state import State, begun, until_gone
from wgpu_backend.server.structured import own_grammar
from wgpu_backend.server.timings import Pace, reads_along, timings
from wgpu_backend.server.wanted import RequestError, Wanted, message_of, status_of
from wgpu_backend.serving.results import Finish, TokenLogprob

_NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
            "frequency_penalty")  # fmt: skip
_WHOLE = ("top_k", "repeat_last_n", "seed")
DEFAULTS: dict[str, Any] = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0,
    "repeat_penalty": 1.0, "repeat_last_n": 64, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "seed": -1,
}  # fmt: skip
_BY_CHANCE = (-1, (1 << 32) - 1)  # seeds that mean none
_REFUSED = {
    "dynatemp_range": forms.NUMBER, "dry_multiplier": forms.NUMBER,
    "xtc_probability": forms.NUMBER, "mirostat": forms.WHOLE, "n_indent": forms.WHOLE,
    "t_max_predict_ms": forms.NUMBER, "lora": forms.LIST,
}  # fmt: skip
_SAMPLING = {
    **forms.without_meaning(
        "dynatemp_exponent", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
        "dry_sequence_breakers", "xtc_threshold", "mirostat_tau", "mirostat_eta", "min_keep",
        "samplers", "cache_prompt", "n_cache_reuse", "n_keep", "n_discard",
        "sse_ping_interval", "backend_sampling",
    ),
    **_REFUSED,
    **dict.fromkeys(_NUMBERS, forms.NUMBER),
    **dict.fromkeys(_WHOLE, forms.WHOLE),
    "model": forms.MODEL_OR_OWN,
    "stream": forms.STREAM,
    "grammar": Field((str,), "a grammar in GBNF that the text keeps to"),
    "json_schema": Field((dict,), "a JSON Schema that the text follows"),
    "n_predict": forms.MOST,
    "max_tokens": forms.MOST,
    "n_cmpl": forms.CHOICES,
    "n": forms.CHOICES,
    "stop": forms.STOP,
    "ignore_eos": Field((bool,), "go on behind tokens that end a text"),
    "logit_bias": Field((list, dict), "pairs of a token or a text and a number, or false"),
    "n_probs": Field((int,), "most likely tokens that are given at each place", least=0, most=20),
    "post_sampling_probs": Field(
        (bool,), "give probabilities behind all options, among what could be chosen"
    ),
    "id_slot": forms.SLOT,
    "timings_per_token": forms.TIMINGS,
    "return_tokens": Field((bool,), "give the tokens, too"),
    "return_progress": forms.PROGRESS,
    "response_fields": Field((list,), "paths of fields that are given; all where it is missing"),
}  # fmt: skip
_PROMPT = Field((str, list, dict), "a text, tokens, both mixed, or several prompts", required=True)
_COMPLETION = {**_SAMPLING, "prompt": _PROMPT}
_INFILL = {
    **_SAMPLING,
    "input_prefix": Field((str,), "text before the gap"),
    "input_suffix": Field((str,), "text behind the gap"),
    "input_extra": Field((list,), "other files: objects of filename and text"),
    "prompt": Field((str,), "how what is missing begins"),
}
_EXTRA = {"filename": forms.TEXT, "text": Field((str,), required=True)}


def endpoints(state: State) -> list[Endpoint]:
    """Endpoints over the models of a state."""

    async def complete(request: Request, fields: Fields) -> Response:
        return await _answer(state, request, fields, _given_prompts)

    async def fill(request: Request, fields: Fields) -> Response:
        return await _answer(state, request, fields, _infill_prompts)

    api, sse = "llama-server", "text/event-stream"
    return [
        *(
            Endpoint(api, "POST", path, "Continue a prompt", complete, _COMPLETION, sse)
            for path in ("/completion", "/completions")
        ),
        Endpoint(api, "POST", "/infill", "Write what is missing", fill, _INFILL, sse),
    ]


def _given_prompts(fields: Fields, loaded: Loaded) -> tuple[list[list[int]], bool]:
    given = fields.get("prompt", str, list, dict)
    if isinstance(given, str):
        require_short(given, loaded)
    return prompts(given, loaded.model.tokenizer)


def _infill_prompts(fields: Fields, loaded: Loaded) -> tuple[list[list[int]], bool]:
    texts: list[str] = []
    for number, item in enumerate(fields.objects("input_extra")):
        extra = Fields(item, _EXTRA, f"input_extra[{number}].")
        texts.append(f"{extra.text('filename', 'tmp')}\n{extra.text('text')}\n")
    prefix, suffix = fields.text("input_prefix"), fields.text("input_suffix")
    tokenizer = loaded.model.tokenizer
    made = infill(tokenizer, prefix, suffix, texts)
    begun = tokenizer.encode(fields.text("prompt"), add_special=False)
    return [[*made, *begun]], False


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked for beside the text."""

    name: str
    probabilities: bool
    sampled: bool
    tokens: bool
    paths: Sequence[str]


async def _answer(state: State, request: Request, fields: Fields, given: Any) -> Response:  # noqa: ANN401
    for name in _REFUSED:
        fields.refuse(name, "is not supported")
    asked = _Asked(
        state.named(fields),
        bool(fields.get("n_probs", int)),
        fields.switch("post_sampling_probs", default=False),
        fields.switch("return_tokens", default=False),
        fields.texts("response_fields"),
    )
    if fields.switch("stream", default=False):
        lines = _events(state, fields, asked, given)
        return StreamingResponse(await begun(lines), media_type="text/event-stream")

    async def whole() -> list[dict[str, Any]] | dict[str, Any]:
        async with state.using(asked.name) as loaded:
            found, several = await run_in_threadpool(given, fields, loaded)
            made = await _all([_wanted(fields, loaded, each) for each in found], loaded, asked)
        ended = [each for choices in made for each in choices]
        for index, each in enumerate(ended):
            each["index"] = index
        picked = [_picked(each, asked.paths) for each in ended]
        return picked if several or len(picked) > 1 else picked[0]

    return JSONResponse(await until_gone(request, whole()))


async def _all(
    wanted: Sequence[Wanted], loaded: Loaded, asked: _Asked
) -> list[list[dict[str, Any]]]:
    """Texts of several prompts, made together; where one fails, all end."""
    answers: list[Answer] = []
    try:
        for each in wanted:
            answers.append(await answer_of(loaded, each))  # noqa: PERF401 what is begun is ended
        return await asyncio.gather(*(_whole(answer, asked) for answer in answers))
    finally:
        for answer in answers:
            answer.generation.cancel()


def _wanted(fields: Fields, loaded: Loaded, tokens: Sequence[int]) -> Wanted:
    own = loaded.stored.parameters
    options: dict[str, Any] = {
        name: v for name in _NUMBERS if (v := fields.get(name, float)) is not None
    }
    options |= {name: v for name in _WHOLE if (v := fields.get(name, int)) is not None}
    if options.get("seed") in _BY_CHANCE:
        options["seed"] = -1
    if stop := fields.texts("stop"):
        options["stop"] = stop
    for name in ("max_tokens", "n_predict"):
        if (most := fields.get(name, int)) is not None:
            options["num_predict"] = most
    return Wanted(
        None,
        tokens,
        options,
        {name: value for name, value in DEFAULTS.items() if name not in own},
        logprobs=fields.get("n_probs", int) or None,
        logit_bias=biases(fields.get("logit_bias", list, dict), loaded.model.tokenizer),
        choices=fields.get("n_cmpl", int) or fields.get("n", int) or 1,
        ignore_eos=fields.switch("ignore_eos", default=False),
        sampled=fields.switch("post_sampling_probs", default=False),
        progress=reads_along(fields),
        slot=forms.slot_of(fields.get("id_slot", int)),
        grammar=own_grammar(fields.get("grammar", str), fields.get("json_schema", dict)),
    )


@dataclass(slots=True)
class _Made:
    """One text as far as it is there."""

    content: str
    tokens: list[int]
    logprobs: list[TokenLogprob]
    pace: Pace = field(default_factory=lambda: Pace(progress=False, times=False))

    def add(self, update: Update) -> str:
        """Take news, and give their text."""
        text = "".join(getattr(part, "text", "") for part in update.parts)
        self.content += text
        self.tokens += update.tokens
        self.logprobs += update.logprobs
        return text


async def _whole(answer: Answer, asked: _Asked) -> list[dict[str, Any]]:
    made = [_Made("", [], []) for _ in range(answer.request.n)]
    ends: dict[int, Finish] = {}
    async for update in answer:
        made[update.choice].add(update)
        if update.finish is not None:
            ends[update.choice] = update.finish
    found: list[dict[str, Any]] = []
    for choice, each in enumerate(made):
        ended = _end(answer, asked, each, ends[choice])
        tokens = each.tokens if asked.tokens else list[int]()
        found.append({**ended, "content": each.content, "tokens": tokens})
    return found


async def _events(state: State, fields: Fields, asked: _Asked, given: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
    """Events of a streamed text."""
    began = False
    try:
        async with state.using(asked.name) as loaded:
            found, _ = await run_in_threadpool(given, fields, loaded)
            if len(found) > 1:
                raise RequestError(400, "prompt: several at once are not streamed, send one each")
            answer = await answer_of(loaded, _wanted(fields, loaded, found[0]))
            made = [_Made("", [], [], Pace.of(fields)) for _ in range(answer.request.n)]
            async for update in answer:
                began = True
                for data in _news(answer, asked, made[update.choice], update):
                    yield _event({"index": update.choice, **data})
    except Exception as error:
        if not began:
            raise
        yield _event(error_body("llama-server", status_of(error), message_of(error)))


def _news(answer: Answer, asked: _Asked, made: _Made, update: Update) -> list[dict[str, Any]]:
    text, found = made.add(update), list[dict[str, Any]]()
    beside = made.pace.beside(len(answer.request.tokens), update)
    if update.reading is not None:
        return [{"content": "", "tokens": [], "stop": False, **beside}] if beside else []
    if text or update.tokens:
        piece: dict[str, Any] = {"content": text, "tokens": [*update.tokens], "stop": False}
        piece |= beside
        piece |= {"tokens_predicted": len(made.tokens)}
        piece |= {"tokens_evaluated": len(answer.request.tokens)}
        if asked.probabilities:
            piece["completion_probabilities"] = _probabilities(update.logprobs, asked)
        found.append(piece)
    if update.finish is not None:
        ended: dict[str, Any] = {
            **_end(answer, asked, made, update.finish),
            "content": "",
            "tokens": [],
        }
        found.append(_picked(ended, asked.paths))
    return found


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _end(answer: Answer, asked: _Asked, made: _Made, finish: Finish) -> dict[str, Any]:
    """What stands at the end of a text beside it."""
    usage, prompt = finish.usage, len(answer.request.tokens)
    kind = "limit" if finish.reason == "length" else "eos" if finish.stop is None else "word"
    found: dict[str, Any] = {
        "index": 0,
        "stop": True,
        "model": asked.name,
        "tokens_predicted": usage.completion_tokens,
        "tokens_evaluated": prompt,
        "tokens_cached": usage.cached_tokens,
        "generation_settings": _settings(answer),
        "prompt": answer.prompt,
        "has_new_line": "\n" in made.content,
        "truncated": finish.context_full,
        "stop_type": kind,
        "stopping_word": finish.stop or "",
        "timings": timings(prompt, finish.usage),
    }
    if asked.probabilities:
        found["completion_probabilities"] = _probabilities(made.logprobs, asked)
    return found


def _settings(answer: Answer) -> dict[str, Any]:
    request, options = answer.request, answer.request.options
    found = {name: getattr(options, name) for name in (*_NUMBERS, *_WHOLE)}
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
            {"token": token, "bias": None if bias == float("-inf") else bias}
            for token, bias in answer.biases.items()
        ],
    }


def _probabilities(found: Sequence[TokenLogprob], asked: _Asked) -> list[dict[str, Any]]:
    many, one = ("top_probs", _prob) if asked.sampled else ("top_logprobs", _logprob)
    return [{**one(each), many: [one(other) for other in each.top]} for each in found]


def _logprob(found: TokenLogprob) -> dict[str, Any]:
    return {"id": found.token, **logprob_of(found)}


def _prob(found: TokenLogprob) -> dict[str, Any]:
    named = {name: value for name, value in _logprob(found).items() if name != "logprob"}
    return {**named, "prob": math.exp(found.logprob)}


def _picked(whole: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Fields that were asked for, by their paths."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for name in path.split("/"):
            inner = cast("dict[str, Any]", value if isinstance(value, dict) else {})
            value = inner.get(name)
        if value is not None:
            found[path] = value
    return found if paths else whole
