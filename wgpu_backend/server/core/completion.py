"""From a completion request to the parts of an answer, for every API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, cast

from starlette.concurrency import run_in_threadpool

from wgpu_backend.engine.arguments import conversation
from wgpu_backend.engine.batching.generation import Generation
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event, Finish, Reading, TokenLogprob, Usage
from wgpu_backend.engine.fitting import PARTS, fitted
from wgpu_backend.errors import ContextFull
from wgpu_backend.ops.sampling.host.options import whole_number
from wgpu_backend.server.api.openai.messages import get_begun_answer, place_system
from wgpu_backend.server.core.defaults import find_closing_tag, strip_reasoning, supply_variables
from wgpu_backend.server.core.model_api import EngineInterface
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest, RequestError, drop_meaningless
from wgpu_backend.server.core.request_log import get_record, ignore
from wgpu_backend.text.chat_template import ChatTemplate
from wgpu_backend.text.grammar import Grammar, tag_id
from wgpu_backend.text.output_parsers import (
    Content,
    OutputParser,
    Part,
    Thinking,
    ToolCall,
    calls_tools,
    parser_for,
    thinks,
)
from wgpu_backend.text.output_parsers.constraints import Setting, answer_grammar, call_grammar
from wgpu_backend.text.output_parsers.incoming_text import count_safe, find_first
from wgpu_backend.text.tokenizer import Tokenizer

# Characters below which a text is not measured; and the factor by which normalising may shrink it.
_SHORT, _SLACK = 1 << 18, 4
# Tokens at the end of a prompt in which a template may open the reasoning.
_TAIL = 16
_MOST_JOINED = 1024  # events


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """The news of one choice of a completion since the update before.

    Parameters
    ----------
    finish : Finish or None
        Set in the last update of a choice.
    reading : Reading or None
        Progress of reading the prompt; such an update has no other fields.
    """

    choice: int
    parts: tuple[Part, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    tokens: tuple[int, ...] = ()
    reading: Reading | None = None


def _merge_updates(updates: Sequence[CompletionDelta]) -> list[CompletionDelta]:
    """Merge updates to one for each choice, in order; of progress updates keep the last."""
    readings = [each for each in updates if each.reading is not None]
    choices: dict[int, list[CompletionDelta]] = {}
    for each in updates:
        if each.reading is None:
            choices.setdefault(each.choice, []).append(each)
    joined = [
        CompletionDelta(
            choice,
            _merge_parts(part for each in some for part in each.parts),
            tuple(logprob for each in some for logprob in each.logprobs),
            some[-1].finish,
            tuple(token for each in some for token in each.tokens),
        )
        for choice, some in choices.items()
    ]
    return [*readings[-1:], *joined]


def _merge_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Merge neighbouring text parts of one kind."""
    made: list[Part] = []
    for kind, run in groupby(parts, type):
        if kind is ToolCall:
            made += run
        else:
            made.append(kind("".join(getattr(part, "text", "") for part in run)))
    return tuple(made)


@dataclass(slots=True)
class MessageAccumulator:
    """A message as far as it was received."""

    content: str
    thinking: str
    tool_calls: list[ToolCall]
    logprobs: list[TokenLogprob]
    finish: Finish | None = None

    @classmethod
    def empty(cls) -> MessageAccumulator:
        """Return an empty message."""
        return cls("", "", [], [])

    def add(self, update: CompletionDelta) -> None:
        """Add an update."""
        for part in update.parts:
            match part:
                case Content(text):
                    self.content += text
                case Thinking(text):
                    self.thinking += text
                case ToolCall():
                    self.tool_calls.append(part)
        self.logprobs += update.logprobs
        self.finish = update.finish or self.finish


class Completion:
    """A completion in progress: iterate over it for updates; leave it to cancel it.

    Updates are of one token each. While the client's socket is full, updates are merged.

    Attributes
    ----------
    tokens : list of int
        Tokens of the prompt, and of the first choice so far.
    echo : bool
        Whether to return the prompt, too.
    prompt_logprobs : list of TokenLogprob
        Log probabilities of the prompt's tokens but the first, if requested; complete before the
        first update.

    Raises
    ------
    RequestError
        The model does not support the request.
    BackendError
        The queue is full, the prompt is too long, or an option is wrong.
    """

    def __init__(self, loaded: Loaded, wanted: CompletionRequest) -> None:
        engine, wanted = require_engine(loaded), loaded.defaults.apply(wanted)
        template = engine.model.prompter.template
        self._template = "" if template is None else template.source
        wanted = _check_capabilities(loaded, wanted, self._template)
        self._tokenizer = engine.model.tokenizer
        self.request = _make_engine_request(loaded, wanted)
        ids = self.request.tokens[-_TAIL:]
        prompt = "" if wanted.messages is None else self._tokenizer.decode(ids, skip_special=False)
        if wanted.grammar is not None or wanted.must_call:
            self.request = replace(self.request, grammar=self._make_grammar(wanted, prompt))
        self._texts = [self._make_text(wanted, prompt) for _ in range(wanted.choices)]
        # An end that is found here, not by the engine, reports the usage from progress events.
        if self._texts[0].spells:
            self.request = replace(self.request, stop=(), progress=True)
        if wanted.one_call:
            self.request = replace(self.request, progress=True)
        self._loaded, self._slot, self._progress = loaded, wanted.slot, wanted.progress
        self._best, self._tells = wanted.best, wanted.logprobs is not None
        self.tokens = [*self.request.tokens]
        self._record = get_record()
        self._record.prompt += len(self.tokens)
        self.echo = wanted.echo
        self.prompt_logprobs: list[TokenLogprob] = []
        self.generation: Generation = engine.submit(self.request)

    def _make_grammar(self, wanted: CompletionRequest, prompt: str) -> Grammar | None:
        """Return the grammar of the whole answer, including the model's tags."""
        template = "" if wanted.messages is None else self._template
        tag = partial(tag_id, self._tokenizer)
        setting = Setting(template, prompt, tag, thinks=wanted.think is not False)
        if wanted.must_call:
            return call_grammar(wanted.must_call, setting)
        return wanted.grammar and answer_grammar(wanted.grammar, setting, wanted.tools)

    def _make_text(self, wanted: CompletionRequest, prompt: str) -> _ChoiceText:
        template = "" if wanted.messages is None else self._template
        template = strip_reasoning(template) if wanted.raw_thoughts else template
        parser = parser_for(template, tools=wanted.tools, prompt=prompt)
        prompt_tokens = len(self.request.tokens)
        text = _ChoiceText(
            parser,
            self._tokenizer,
            tuple(self.request.stop),
            prompt_tokens,
            spelled=wanted.spelled,
        )
        text.one_call = wanted.one_call
        return text

    async def __aiter__(self) -> AsyncIterator[CompletionDelta]:
        """Yield the updates of the completion."""
        if self._slot is not None:
            self._loaded.slots[self._slot] = self.tokens
        updates: list[CompletionDelta] = []
        with self.generation:
            async for event, more in self.generation.taken():
                updates += self._read_event(event)
                ended = all(each.ended for each in self._texts)
                joins = self._record.lags and len(updates) < _MOST_JOINED
                # Wait for more events while the client lags: it cannot read them one by one anyway.
                if joins and more and not ended:
                    continue
                self._record.lags = False
                for each in _merge_updates(updates) if len(updates) > 1 else updates:
                    yield each
                if ended:
                    return
                updates = []

    def _read_event(self, event: Event) -> list[CompletionDelta]:
        """Return the updates of an event: one or none."""
        text = self._texts[event.choice]
        if event.prompt_logprobs or text.ended:
            self.prompt_logprobs += event.prompt_logprobs
            return []
        if event.reading is not None and not self._progress:
            text.read(event.reading)
            return []
        self._record.made += len(event.tokens)
        if not event.choice:
            self.tokens += event.tokens
        return [text.update(event)]

    @property
    def prompt(self) -> str:
        """The prompt, with control tokens spelled out."""
        return self._tokenizer.decode([*self.request.tokens], skip_special=False)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self._tokenizer

    @property
    def biases(self) -> dict[int, float]:
        """The biases of tokens; ``ignore_eos`` rules out tokens that end a text."""
        ends = self._tokenizer.eog_ids if self.request.ignore_eos else ()
        return {**self.request.logit_bias, **dict.fromkeys(ends, float("-inf"))}

    def count(self, text: str) -> int:
        """Count the tokens of a text of the answer."""
        return len(self._tokenizer.encode(text, add_special=False))

    async def collect(self) -> list[MessageAccumulator]:
        """Return all choices at their end, or the best of them, the most likely first."""
        said = [MessageAccumulator.empty() for _ in self._texts]
        async for update in self:
            said[update.choice].add(update)
        if not self._best:
            return said
        best = sorted(said, key=_compute_mean_logprob, reverse=True)[: self._best]
        return best if self._tells else [replace(each, logprobs=[]) for each in best]


def _compute_mean_logprob(said: MessageAccumulator) -> float:
    """Return the mean log probability of an answer's tokens."""
    return sum(each.logprob for each in said.logprobs) / max(1, len(said.logprobs))


async def begin_completion(loaded: Loaded, wanted: CompletionRequest) -> Completion:
    """Begin a completion; a thread tokenizes the prompt, since a long one takes seconds."""
    task = asyncio.ensure_future(run_in_threadpool(Completion, loaded, wanted))
    try:
        # The request may be cancelled meanwhile; the callback then cancels the generation.
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_cancel_abandoned)
        raise


@asynccontextmanager
async def begin_completions(
    loaded: Loaded, wanted: Sequence[CompletionRequest]
) -> AsyncGenerator[list[Completion]]:
    """Begin completions together, and cancel them at the end of the block or if one fails."""
    answers: list[Completion] = []
    try:
        for each in wanted:
            answers.append(await begin_completion(loaded, each))  # noqa: PERF401 what is begun is ended
        yield answers
    finally:
        for answer in answers:
            answer.generation.cancel()


def _cancel_abandoned(task: asyncio.Future[Completion]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().generation.cancel()


class _ChoiceText:
    """The text of one choice, split into parts.

    A parser's tags may be control tokens, whose text the engine leaves out. Then the tokens are
    detokenized here, and stop texts are found here.
    """

    def __init__(
        self,
        parser: OutputParser,
        tokenizer: Tokenizer,
        stops: tuple[str, ...],
        prompt: int,
        *,
        spelled: bool = False,
    ) -> None:
        self.parser = parser
        self.ended = False
        # Whether the first call ends the answer.
        self.one_call = False
        self._stops = stops
        self._held = ""
        self._usage = Usage(prompt)
        self._first = 0.0
        tags = tokenizer.control_ids(parser.tags)
        self._detokenizer = None
        if tags or spelled:
            self._detokenizer = tokenizer.stream(skip_special=not spelled, spelled=tags)

    @property
    def spells(self) -> bool:
        """Return whether the text is detokenized here, not by the engine."""
        return self._detokenizer is not None

    def read(self, reading: Reading) -> None:
        """Record the progress of reading the prompt."""
        read = {"cached_tokens": reading.cached, "prompt_seconds": reading.seconds}
        self._usage = replace(self._usage, **read)

    def _count(self, event: Event) -> None:
        if event.reading is not None:
            self.read(event.reading)
        if event.tokens:
            now = time.perf_counter()
            self._first = self._first or now
            made = self._usage.completion_tokens + len(event.tokens)
            self._usage = replace(self._usage, completion_tokens=made, seconds=now - self._first)

    def update(self, event: Event) -> CompletionDelta:
        finish, text = event.finish, event.text
        self._count(event)
        if self._detokenizer is not None:
            text = "".join(self._detokenizer.push(token) for token in event.tokens)
            text += self._detokenizer.flush() if finish is not None else ""
            text, finish = self._cut_at_stop(text, finish)
        parts = self.parser.push(text)
        if finish is not None:
            self.ended = True
            parts += self.parser.finish(cut=finish.reason != "stop" or finish.stop is not None)
        if self.one_call and (calls := [i for i, each in enumerate(parts) if _is_call(each)]):
            parts, self.ended = parts[: calls[0] + 1], True
            finish = finish or Finish("stop", None, context_full=False, usage=self._usage)
        return CompletionDelta(
            event.choice, tuple(parts), event.logprobs, finish, event.tokens, event.reading
        )

    def _cut_at_stop(self, text: str, finish: Finish | None) -> tuple[str, Finish | None]:
        """Return the text up to a stop text, and hold back a possible beginning of one."""
        self._held += text
        found = find_first(self._held, self._stops)
        if found is not None:
            usage = self._usage if finish is None else finish.usage
            ended = Finish("stop", found[1], context_full=False, usage=usage)
            return self._held[: found[0]], ended
        ready = len(self._held) if finish is not None else count_safe(self._held, self._stops)
        text, self._held = self._held[:ready], self._held[ready:]
        return text, finish


def _is_call(part: Part) -> bool:
    return isinstance(part, ToolCall)


def require_engine(loaded: Loaded) -> EngineInterface:
    """Return the engine of a model.

    Raises
    ------
    RequestError
        It does not generate text.
    """
    if loaded.engine is None:
        raise RequestError(400, f'"{loaded.stored.entry.name}" does not support generate')
    return loaded.engine


def tokenize_prompt(loaded: Loaded, wanted: CompletionRequest) -> list[int]:
    """Return the prompt tokens of a completion request.

    Raises
    ------
    RequestError
        The model does not support the request.
    """
    template = require_engine(loaded).model.prompter.template
    wanted = loaded.defaults.apply(wanted)
    wanted = _check_capabilities(loaded, wanted, "" if template is None else template.source)
    return [*check_tokens(wanted.before, loaded), *_tokenize(loaded, wanted, None)]


def check_tokens(given: Sequence[object], loaded: Loaded) -> list[int]:
    """Check that each token of a request is in the vocabulary.

    Raises
    ------
    RequestError
        One is not.
    """
    size = loaded.model.tokenizer.vocab_size
    for token in given:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            shown = str(token)[:40]
            raise RequestError(400, f"tokens: {shown!r}, needs whole numbers below {size}")
    return cast("list[int]", [*given])


def _check_capabilities(
    loaded: Loaded, wanted: CompletionRequest, template: str
) -> CompletionRequest:
    """Check that the model supports the request; drop optional reasoning if it cannot reason."""
    name = loaded.stored.entry.name
    if wanted.tools and not calls_tools(template):
        raise RequestError(400, f'"{name}" does not support tools')
    if not wanted.think or thinks(template):
        return wanted
    why = f'"{name}" does not support thinking'
    if not wanted.optional_think:
        raise RequestError(400, why)
    ignore(wanted.optional_think, why)
    return replace(wanted, think=None)


def _make_engine_request(loaded: Loaded, wanted: CompletionRequest) -> Request:
    sources = (loaded.stored.parameters, wanted.usual, loaded.defaults.sampling, wanted.options)
    options = {name: value for each in sources for name, value in drop_meaningless(each).items()}
    options.pop("num_ctx", None)
    keep = whole_number("num_keep", options.pop("num_keep", 4))
    stop = options.pop("stop", None) or ()
    limit = options.pop("num_predict", None)
    limit = None if limit is None else whole_number("num_predict", limit)
    tokens = [*check_tokens(wanted.before, loaded), *_tokenize(loaded, wanted, limit)]
    return Request(
        _cut_middle(tokens, keep, loaded.model.num_ctx) if wanted.cut else tokens,
        options=options,  # pyright: ignore[reportArgumentType] checked by itself
        max_tokens=limit,
        stop=stop,
        logprobs=0 if wanted.best and wanted.logprobs is None else wanted.logprobs,
        sampled=wanted.sampled,
        prompt_logprobs=wanted.echo and wanted.logprobs is not None,
        logit_bias=wanted.logit_bias,
        when_full="shift" if wanted.shift else "stop",
        keep=keep if wanted.shift else 0,
        n=wanted.choices,
        ignore_eos=wanted.ignore_eos,
        progress=wanted.progress,
        max_seconds=wanted.max_seconds,
        min_tokens=wanted.min_tokens,
        stop_tokens=wanted.stop_tokens,
        lora=_choose_lora_scales(loaded, wanted),
    )


def _choose_lora_scales(
    loaded: Loaded, wanted: CompletionRequest
) -> Sequence[tuple[int, float]] | None:
    """Return the scales of a request's LoRA adapters; None for those of the model's file."""
    if wanted.lora is not None or loaded.lora_scales is None:
        return wanted.lora
    # The worker changes its own scales only between requests; until then these apply.
    return list(enumerate(loaded.lora_scales))


def _cut_middle(tokens: list[int], keep: int, room: int) -> list[int]:
    """Leave out the middle of tokens that leave the context no room for an answer."""
    if len(tokens) < room:
        return tokens
    size = room - max(room // PARTS, 1)
    first = min(keep if keep >= 0 else size, size // 2)
    return [*tokens[:first], *tokens[first - size :]]


def require_short(text: str, loaded: Loaded) -> None:
    """Refuse a text that cannot fit into the context, before spending seconds on tokenizing it.

    Spaces do not count, since some tokenizers drop them. A margin allows for normalisation, which
    may shorten a text.

    Raises
    ------
    ContextFull
    """
    tokenizer, room = loaded.model.tokenizer, loaded.model.num_ctx
    if len(text) <= _SHORT:
        return
    longest = max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
    size = sum(map(len, text.split()))
    if size > _SLACK * longest * room:
        raise ContextFull(f"the prompt has {size} characters, the context holds {room} tokens")


def _tokenize(loaded: Loaded, wanted: CompletionRequest, limit: int | None) -> list[int]:
    prompter = loaded.model.prompter
    if wanted.messages is None:
        given = wanted.prompt
        if not isinstance(given, str):
            return check_tokens(given, loaded)
        require_short(given, loaded)
        return prompter.raw(given)
    source = prompter.template.source if prompter.template else ""
    kwargs: dict[str, Any] = {**supply_variables(source, wanted.tools)}
    if wanted.think is not None:
        kwargs["enable_thinking"] = bool(wanted.think)
        kwargs["thinking"] = bool(wanted.think)
    if isinstance(wanted.think, str):
        kwargs["reasoning_effort"] = wanted.think
    kwargs |= wanted.template
    messages = prompter.checked(conversation([*wanted.messages]))
    # Earlier messages may be dropped later; the last one must fit.
    texts = [each.get("content") for each in (messages[-1:] if wanted.truncate else messages)]
    require_short("".join(text for text in texts if isinstance(text, str)), loaded)
    begun = get_begun_answer(messages)
    if begun:
        # The template would close the begun answer, so its text is appended after rendering.
        messages = messages[:-1]
        # A begun answer has passed the point where the model could reason.
        kwargs.setdefault("enable_thinking", False)
    behind = prompter.tokenizer.encode(begun, add_special=False) if begun else []

    def render(turns: Sequence[Mapping[str, Any]]) -> list[int]:
        tools = [*wanted.tools] or None
        turns = _place_system(turns, prompter.template)
        found = prompter.chat(turns, tools=tools, chat_template_kwargs=kwargs)
        return [*found, *(behind or _close_reasoning(found, loaded, wanted))]

    if not wanted.truncate:
        return render(messages)
    try:
        return fitted(messages, render, loaded.model.num_ctx, -1 if limit is None else limit).tokens
    except ContextFull:
        if not wanted.cut:
            raise
    return render(messages)


def _place_system(
    turns: Sequence[Mapping[str, Any]], template: ChatTemplate | None
) -> Sequence[Mapping[str, Any]]:
    """Return the turns in a form of which the template renders all."""
    return turns if template is None or template.places_system else place_system(turns)


def _close_reasoning(found: Sequence[int], loaded: Loaded, wanted: CompletionRequest) -> list[int]:
    """Return tokens that close the reasoning opened by the template, if the request disables it."""
    prompter = loaded.model.prompter
    if wanted.think is not False or prompter.template is None:
        return []
    prompt = prompter.tokenizer.decode(found[-_TAIL:], skip_special=False)
    tag = find_closing_tag(prompt, prompter.template.source)
    return prompter.tokenizer.encode(tag, add_special=False, parse_special=True) if tag else []
