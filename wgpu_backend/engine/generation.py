"""One sequence, token by token: prompt, sampling, stops, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from wgpu_backend.batch import Batch
from wgpu_backend.engine.runner import Head, Runner, Work
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.errors import ContextFull
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.tokenizer import Detokenizer

StopReason = Literal["stop", "length", "context"]


@dataclass(slots=True)
class Stats:
    """What a generation took.

    Parameters
    ----------
    prompt_tokens : int
        Tokens of the prompt that were computed.
    reused_tokens : int
        Tokens of the prompt that were in the cache already.
    tokens : int
        Tokens made.
    prompt_seconds, seconds : float
    reason : str or None
        Why it ended: ``stop`` (an end token or a stop text), ``length`` (as many tokens as asked
        for), ``context`` (the context is full); None when it was broken off.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    reason: StopReason | None = None


@dataclass(slots=True)
class Session:
    """A sequence in the cache and the tokens it stands for; a next prompt reuses what is equal."""

    sequence: int = 0
    tokens: list[int] = field(default_factory=list[int])


class TokenStream:
    """Makes tokens of one sequence.

    Parameters
    ----------
    runner : Runner
    session : Session
        Holds what the cache has; kept right even when the stream is broken off.
    sampler : StepSampler
    ends : frozenset of int
        Tokens that end the text; they are not given.
    room : int
        Positions of the context.
    limit : int
        Most tokens to make; negative for as many as the context holds.
    """

    def __init__(
        self,
        runner: Runner,
        session: Session,
        sampler: StepSampler,
        ends: frozenset[int],
        room: int,
        limit: int = -1,
    ) -> None:
        self._runner = runner
        self._session = session
        self._sampler = sampler
        self._ends = ends
        self._room = room
        self._limit = limit
        self.stats = Stats()
        self._head = Head(f"sample:{sampler.kind}", self._build)

    def _build(self, batch: Batch, hidden: Tensor) -> Sequence[Tensor]:
        logits = self._runner.model.logits(hidden)
        return self._sampler.build(batch.context, logits)

    def run(self, prompt: Sequence[int]) -> Iterator[int]:
        """Compute the prompt and give tokens until an end.

        Raises
        ------
        ContextFull
            The prompt is empty or longer than the context.
        """
        self._check(prompt)
        begin = time.perf_counter()
        token = self._first(prompt)
        self.stats.prompt_seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        try:
            yield from self._steps(token)
        finally:
            self.stats.seconds = time.perf_counter() - begin

    def _check(self, prompt: Sequence[int]) -> None:
        room = self._room
        if not prompt:
            raise ContextFull("generate: the prompt has 0 tokens, needs at least 1")
        if len(prompt) > room:
            raise ContextFull(
                f"generate: the prompt has {len(prompt)} tokens, the context holds {room}; "
                "shorten it or load the model with a larger num_ctx"
            )

    def _first(self, prompt: Sequence[int]) -> int:
        """Token after the prompt, whose equal beginning the cache may hold already."""
        session, cache = self._session, self._runner.cache
        same = _common(session.tokens, prompt[:-1])
        same = same if cache.can_resume(session.sequence, same) else 0
        cache.remove(session.sequence, same)
        del session.tokens[same:]
        self.stats.reused_tokens, self.stats.prompt_tokens = same, len(prompt) - same
        self._sampler.start(prompt)
        arrays = self._runner.prefill(
            session.sequence, prompt[same:], self._head, self._sampler.inputs()
        )
        session.tokens += prompt[same:]
        return self._sampler.token(arrays)

    def _steps(self, token: int) -> Iterator[int]:
        session, stats = self._session, self.stats
        while True:
            if token in self._ends:
                stats.reason = "stop"
                return
            if 0 <= self._limit <= stats.tokens:
                stats.reason = "length"
                return
            stats.tokens += 1
            yield token
            if len(session.tokens) >= self._room:
                stats.reason = "context"
                return
            work = Work(session.sequence, (token,), (0,))
            arrays = self._runner.run([work], self._head, self._sampler.inputs()).wait()
            session.tokens.append(token)
            token = self._sampler.token(arrays)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if len(different) else size


def pieces(
    tokens: Iterator[int], detokenizer: Detokenizer, stops: Sequence[str], stats: Stats
) -> Iterator[str]:
    """Text of a token stream, held back while it may be the beginning of a stop text.

    Parameters
    ----------
    tokens : iterator of int
    detokenizer : Detokenizer
    stops : sequence of str
        Texts that end the stream; they are not given.
    stats : Stats
        Gets the reason when a stop text ended it.
    """
    held = ""
    for token in tokens:
        held += detokenizer.push(token)
        found = [at for at in (held.find(s) for s in stops) if at >= 0]
        if found:
            stats.reason = "stop"
            held = held[: min(found)]
            break
        ready = len(held) - _partial(held, stops)
        if ready:
            yield held[:ready]
            held = held[ready:]
    else:
        held += detokenizer.flush()
    if held:
        yield held


def _partial(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop text."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
