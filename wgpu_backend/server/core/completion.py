"""From a completion request to the parts of an answer, for every API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from starlette.concurrency import run_in_threadpool

from wgpu_backend.engine.batching.generation import Generation
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event, Finish, Reading, TokenLogprob, Usage
from wgpu_backend.engine.media import drop_stand_ins
from wgpu_backend.server.core.defaults import strip_reasoning
from wgpu_backend.server.core.engine_request import (
    decode_ending,
    get_template,
    make_engine_request,
    require_engine,
    tokenize_prompt,
)
from wgpu_backend.server.core.media import fetch_remote_parts
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest
from wgpu_backend.server.core.request_log import get_record
from wgpu_backend.text.output_parsers import (
    Content,
    OutputParser,
    Part,
    Thinking,
    ToolCall,
    parser_for,
)
from wgpu_backend.text.output_parsers.incoming_text import count_safe, find_first
from wgpu_backend.text.tokenizer import Tokenizer

# Events that are merged while a client lags; more would delay the first piece that it gets.
_MOST_MERGED = 1024


@dataclass(slots=True)
class CompletionOutput:
    """The output of one choice of a completion: what one event adds, or all of it so far.

    Parameters
    ----------
    parts : list of Part
        Text, reasoning and calls, in their order.
    finish : Finish or None
        Set in the last output of a choice.
    reading : Reading or None
        Progress of reading the prompt; such an output has no other fields.
    """

    choice: int
    parts: list[Part] = field(default_factory=list[Part])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    tokens: list[int] = field(default_factory=list[int])
    finish: Finish | None = None
    reading: Reading | None = None

    @property
    def content(self) -> str:
        """The text."""
        return "".join(part.text for part in self.parts if isinstance(part, Content))

    @property
    def thinking(self) -> str:
        """The reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, Thinking))

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of tools."""
        return [part for part in self.parts if isinstance(part, ToolCall)]

    def add(self, more: CompletionOutput) -> None:
        """Add the output of a later event of the same choice."""
        for part in more.parts:
            last = self.parts[-1] if self.parts else None
            if isinstance(part, Content) and isinstance(last, Content):
                self.parts[-1] = Content(last.text + part.text)
            elif isinstance(part, Thinking) and isinstance(last, Thinking):
                self.parts[-1] = Thinking(last.text + part.text)
            else:
                self.parts.append(part)
        self.logprobs += more.logprobs
        self.tokens += more.tokens
        self.finish = more.finish or self.finish


def _merge_outputs(outputs: Sequence[CompletionOutput]) -> list[CompletionOutput]:
    """Merge outputs to one for each choice, in order; of progress reports keep the last."""
    readings = [each for each in outputs if each.reading is not None]
    choices: dict[int, CompletionOutput] = {}
    for each in outputs:
        if each.reading is None:
            choices.setdefault(each.choice, CompletionOutput(each.choice)).add(each)
    return [*readings[-1:], *choices.values()]


class Completion:
    """A completion in progress: iterate over it for outputs; leave it to cancel it.

    Outputs are of one token each. While the client's socket is full, they are merged.

    Attributes
    ----------
    tokens : list of int
        Tokens of the prompt, and of the first choice so far.
    echo : bool
        Whether to return the prompt, too.
    prompt_logprobs : list of TokenLogprob
        Log probabilities of the prompt's tokens but the first, if requested; complete before the
        first output.

    Raises
    ------
    RequestError
        The model does not support the request.
    BackendError
        The queue is full, the prompt is too long, or an option is wrong.
    """

    def __init__(self, loaded: Loaded, request: CompletionRequest) -> None:
        engine = require_engine(loaded)
        self._tokenizer = engine.model.tokenizer
        engine_request = make_engine_request(loaded, request)
        self._texts = _make_texts(loaded, request, engine_request)
        finds_stops = self._texts[0].spells
        if finds_stops or request.one_call:
            # An end that is found here, not by the engine, reports the usage from progress events.
            stop = () if finds_stops else engine_request.stop
            engine_request = replace(engine_request, stop=stop, progress=True)
        self.request = engine_request
        self._loaded, self._slot = loaded, request.slot
        self._progress = request.engine.get("progress", False)
        self._best = request.best
        self._reports_logprobs = request.engine.get("logprobs") is not None
        self.tokens = [*self.request.tokens]
        self._record = get_record()
        self._record.prompt += len(self.tokens)
        self.echo = request.echo
        self.prompt_logprobs: list[TokenLogprob] = []
        self.generation: Generation = engine.submit(self.request)

    async def __aiter__(self) -> AsyncIterator[CompletionOutput]:
        """Yield the outputs of the completion."""
        # The list grows with the answer, so a slot has the tokens of a cut answer as well.
        if self._slot is not None:
            self._loaded.slots[self._slot] = self.tokens
        outputs: list[CompletionOutput] = []
        # Leaving the loop early cancels the generation.
        with self.generation:
            async for event, more in self.generation.taken():
                outputs += self._read_event(event)
                ended = all(each.ended for each in self._texts)
                joins = self._record.lags and len(outputs) < _MOST_MERGED
                # Wait for more events while the client lags: it cannot read them one by one anyway.
                if joins and more and not ended:
                    continue
                self._record.lags = False
                for each in _merge_outputs(outputs) if len(outputs) > 1 else outputs:
                    yield each
                if ended:
                    return
                outputs = []

    def _read_event(self, event: Event) -> list[CompletionOutput]:
        """Return the outputs of an event: one or none."""
        text = self._texts[event.choice]
        # The engine may generate further tokens after an end that was found here.
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
        tokens = drop_stand_ins(self.request.tokens)
        return self._tokenizer.decode(tokens, skip_special=False)

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

    async def collect(self) -> list[CompletionOutput]:
        """Return all choices at their end, or the best of them, the most likely first."""
        choices = [CompletionOutput(number) for number in range(self.request.n)]
        async for output in self:
            choices[output.choice].add(output)
        if not self._best:
            return choices
        best = sorted(choices, key=_compute_mean_logprob, reverse=True)[: self._best]
        return best if self._reports_logprobs else [replace(each, logprobs=[]) for each in best]


def _compute_mean_logprob(choice: CompletionOutput) -> float:
    """Return the mean log probability of a choice's tokens."""
    # OpenAI ranks by the log probability per token, so that short answers have no advantage.
    return sum(each.logprob for each in choice.logprobs) / max(1, len(choice.logprobs))


async def begin_completion(loaded: Loaded, request: CompletionRequest) -> Completion:
    """Begin a completion; a thread tokenizes the prompt, since a long one takes seconds."""
    request = await fetch_remote_parts(loaded, request)
    task = asyncio.ensure_future(run_in_threadpool(Completion, loaded, request))
    try:
        # The request may be cancelled meanwhile; the callback then cancels the generation.
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_cancel_abandoned)
        raise


@asynccontextmanager
async def begin_completions(
    loaded: Loaded, requests: Sequence[CompletionRequest]
) -> AsyncGenerator[list[Completion]]:
    """Begin completions together, and cancel them at the end of the block or if one fails."""
    answers: list[Completion] = []
    try:
        for each in requests:
            answers.append(await begin_completion(loaded, each))  # noqa: PERF401 what is begun is ended
        yield answers
    finally:
        for answer in answers:
            answer.generation.cancel()


async def count_prompt(loaded: Loaded, request: CompletionRequest) -> int:
    """Return how many tokens the prompt of a request has; raises like `Completion`."""
    return len(await tokenize_conversation(loaded, request))


async def tokenize_conversation(loaded: Loaded, request: CompletionRequest) -> list[int]:
    """Return the tokens of the prompt of a request; raises like `Completion`."""
    request = await fetch_remote_parts(loaded, request)
    return await run_in_threadpool(tokenize_prompt, loaded, request)


def _cancel_abandoned(task: asyncio.Future[Completion]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().generation.cancel()


def _make_texts(
    loaded: Loaded, request: CompletionRequest, engine_request: Request
) -> list[_ChoiceText]:
    """Make the text of each choice, with a parser for the model's tags."""
    template = "" if request.messages is None else get_template(loaded)
    raw = loaded.defaults.raw_thoughts if request.raw_thoughts is None else request.raw_thoughts
    template = strip_reasoning(template) if raw else template
    ending = decode_ending(loaded, request, engine_request.tokens)
    return [
        _ChoiceText(
            parser_for(template, tools=request.tools, prompt=ending),
            loaded.model.tokenizer,
            engine_request,
            spelled=request.spelled,
            one_call=request.one_call,
        )
        for _ in range(engine_request.n)
    ]


class _ChoiceText:
    """The text of one choice, split into parts.

    A parser's tags may be control tokens, whose text the engine leaves out. Then the tokens are
    detokenized here, and stop texts are found here.
    """

    def __init__(
        self,
        parser: OutputParser,
        tokenizer: Tokenizer,
        request: Request,
        *,
        spelled: bool,
        one_call: bool,
    ) -> None:
        self.parser = parser
        self.ended = False
        # Whether the first call ends the answer.
        self._one_call = one_call
        self._stops = tuple(request.stop)
        self._held = ""
        self._prompt = Usage(len(request.tokens))
        self._made = 0
        # When the first token and the last one so far came.
        self._first = self._last = 0.0
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
        self._prompt = replace(self._prompt, **read)

    @property
    def _usage(self) -> Usage:
        """The usage of the text so far."""
        seconds = self._last - self._first
        return replace(self._prompt, completion_tokens=self._made, seconds=seconds)

    def _count(self, event: Event) -> None:
        if event.reading is not None:
            self.read(event.reading)
        if event.tokens:
            self._last = time.perf_counter()
            # The first token belongs to the time of the prompt.
            self._first = self._first or self._last
            self._made += len(event.tokens)

    def update(self, event: Event) -> CompletionOutput:
        """Return the output of an event."""
        finish, text = event.finish, event.text
        self._count(event)
        if self._detokenizer is not None:
            text = "".join(self._detokenizer.push(token) for token in event.tokens)
            text += self._detokenizer.flush() if finish is not None else ""
            text, finish = self._cut_at_stop(text, finish)
        parts = self.parser.push(text)
        if finish is not None:
            self.ended = True
            # Of a cut answer, an unfinished call is dropped: its arguments may be incomplete.
            parts += self.parser.finish(cut=finish.reason != "stop" or finish.stop is not None)
        if self._one_call and (calls := [i for i, each in enumerate(parts) if _is_call(each)]):
            parts, self.ended = parts[: calls[0] + 1], True
            finish = finish or Finish("stop", None, context_full=False, usage=self._usage)
        return CompletionOutput(
            event.choice, [*parts], [*event.logprobs], [*event.tokens], finish, event.reading
        )

    def _cut_at_stop(self, text: str, finish: Finish | None) -> tuple[str, Finish | None]:
        """Return the text up to a stop text, and hold back a possible beginning of one."""
        self._held += text
        found = find_first(self._held, self._stops)
        if found is not None:
            usage = self._usage if finish is None else finish.usage
            ended = Finish("stop", found[1], context_full=False, usage=usage)
            return self._held[: found[0]], ended
        # A piece that was sent cannot be taken back.
        ready = len(self._held) if finish is not None else count_safe(self._held, self._stops)
        text, self._held = self._held[:ready], self._held[ready:]
        return text, finish


def _is_call(part: Part) -> bool:
    return isinstance(part, ToolCall)
