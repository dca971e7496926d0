"""Generation of one sequence: prompt, token stream, stop texts and statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from wgpu_backend.engine.pipelined_decoder import TOGETHER, PipelinedDecoder
from wgpu_backend.engine.runner import Head, Runner
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.engine.stop_texts import StopTexts
from wgpu_backend.engine.turns import Turns
from wgpu_backend.errors import BackendError, CacheFull, ContextFull
from wgpu_backend.text.tokenizer import Detokenizer

DoneReason = Literal["stop", "length"]


@dataclass(slots=True)
class Stats:
    """The statistics of a generation.

    Parameters
    ----------
    prompt_tokens : int
        Tokens of the prompt that were computed.
    reused_tokens : int
        Tokens of the prompt that were already in the cache.
    tokens : int
        Tokens generated.
    done_reason : str or None
        Reason for the end, in Ollama's terms: ``stop`` (an end token or a stop text), ``length``
        (the token limit or a full context); None if it was interrupted.
    context_full : bool
        Whether it ended because the context is full.
    dropped_messages : int
        Oldest messages left out because the conversation exceeds the context.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    done_reason: DoneReason | None = None
    context_full: bool = False
    dropped_messages: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """A sequence in the cache and its tokens, whose common prefix the next prompt reuses.

    Parameters
    ----------
    tokens : list of int
        Tokens in the cache, without those of steps that are in flight.
    turn : int
        Number of the session's latest user; only that one may continue.
    user : str
        Description of that user, for messages.
    active : bool
        Whether a stream is running, so that its part of the cache must stay.
    calls : Turns
        FIFO lock of calls that need the session until they end.
    """

    sequence: int = 0
    tokens: list[int] = field(default_factory=list[int])
    turn: int = 0
    user: str = ""
    active: bool = False
    calls: Turns = field(default_factory=Turns)

    def claim(self, user: str) -> int:
        """Take the session over; a new `turn` lets the former user detect it."""
        self.turn += 1
        self.user, self.active = user, False
        return self.turn


class TokenStream:
    """A stream of the tokens of one sequence.

    Parameters
    ----------
    session : Session
        Tracks the cache's content; stays correct even if the stream is interrupted.
    ends : frozenset of int
        Tokens that end the text; they are not yielded.
    room : int
        Positions in the context.
    limit : int
        Most tokens to generate; negative for as many as the context holds.
    depth : int
        Steps in flight at most, see `PipelinedDecoder`: with more than one, the device works while
        the host processes tokens. The tokens are the same.
    call : str
        Name of the calling method, for messages.
    make_room : callable
        Called if the cache has no room; returns False if nothing could be freed.
    """

    def __init__(
        self,
        runner: Runner,
        session: Session,
        sampler: StepSampler,
        ends: frozenset[int],
        room: int,
        limit: int = -1,
        depth: int = 1,
        *,
        call: str = "generate",
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self._call = call
        self._make_room = make_room
        self._runner = runner
        self._session = session
        self._sampler = sampler
        self._ends = ends
        self._room = room
        self._limit = limit
        self.stats = Stats()
        build = sampler.head(runner.model, runner.token_slots)
        head = Head("next token", build, 1 if sampler.on_host else TOGETHER)
        self._steps = PipelinedDecoder(runner, session.sequence, sampler, head, depth, room)

    def run(self, prompt: Sequence[int]) -> Generator[int]:
        """Compute the prompt and yield tokens until the end.

        Raises
        ------
        ContextFull
            The prompt is empty or longer than the context.
        BackendError
            Another call used the session since the last token.
        """
        self._check(prompt)
        turn = self._session.claim(f"another call of {self._call}()")
        self._session.active = True
        begin = time.perf_counter()
        try:
            token = self._first(prompt)
            self.stats.prompt_seconds = time.perf_counter() - begin
            begin = time.perf_counter()
            yield from self._tokens(token, turn)
        finally:
            if self.stats.prompt_seconds:
                self.stats.seconds = time.perf_counter() - begin
            self._settle(turn)

    def _check(self, prompt: Sequence[int]) -> None:
        room = self._room
        if not prompt:
            raise ContextFull(f"{self._call}: the prompt has 0 tokens, needs at least 1")
        if len(prompt) > room:
            raise ContextFull(
                f"{self._call}: the prompt has {len(prompt)} tokens, the context holds {room}; "
                "shorten it or load the model with a larger num_ctx"
            )

    def _first(self, prompt: Sequence[int]) -> int:
        """Return the token after the prompt, reusing the prefix that is in the cache."""
        session, cache = self._session, self._runner.cache
        begun = self._runner.begins(prompt)
        same = cache.remove(session.sequence, _common(session.tokens, begun[:-1]))
        del session.tokens[same:]
        self.stats.reused_tokens, self.stats.prompt_tokens = same, len(prompt) - same
        self._sampler.start(begun)
        self._begin(prompt, begun, same)
        token = self._steps.token(self._limit or 1)
        session.tokens[:] = begun
        return token

    def _begin(self, prompt: Sequence[int], begun: Sequence[int], same: int) -> None:
        """Submit the part of the prompt that is not in the cache; retry while room can be freed."""
        while True:
            try:
                if not same:
                    self._runner.read(self._session.sequence, prompt)
                return self._steps.begin(begun[same:])
            except CacheFull:
                same = self._runner.cache.remove(self._session.sequence, same)
                if not self._make_room():
                    raise

    def _next(self) -> int:
        while True:
            try:
                return self._steps.token(self._limit - self.stats.tokens)
            except CacheFull:
                if not self._make_room():
                    raise

    def _tokens(self, token: int, turn: int) -> Iterator[int]:
        """Yield `token` and those after it; the session has all but the last one yielded."""
        session, stats = self._session, self.stats
        while True:
            if token in self._ends:
                stats.done_reason = "stop"
                return
            if self._limit != 0:
                stats.tokens += 1
                yield token
            if session.turn != turn:
                raise BackendError(
                    f"{self._call}: {session.user} took the session over after token "
                    f"{stats.tokens} of this stream; concurrent streams need a session each: "
                    "model.session()"
                )
            if self._sampler.ended:
                stats.done_reason = "stop"
                return
            if stats.tokens == self._limit:
                stats.done_reason = "length"
                return
            if len(session.tokens) >= self._room:
                stats.done_reason, stats.context_full = "length", True
                return
            following = self._next()
            session.tokens.append(token)
            token = following

    def _settle(self, turn: int) -> None:
        """Cut the cache back to the session's tokens, unless another call took it over."""
        self._steps.forget()
        session = self._session
        if session.turn == turn:
            session.active = False
            left = self._runner.cache.remove(session.sequence, len(session.tokens))
            del session.tokens[left:]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if len(different) else size


def pieces(
    tokens: Generator[int],
    detokenizer: Detokenizer,
    stops: Sequence[str],
    stats: Stats,
    *,
    unfinished: bool = True,
) -> Iterator[str]:
    """Yield the text of a token stream, held back while it may begin a stop text.

    Parameters
    ----------
    tokens : generator of int
        Closed at the end, also after an error.
    stops : sequence of str
        Texts that end the stream; they are not yielded.
    stats : Stats
        Receives the reason if a stop text ends the stream.
    unfinished : bool
        Yield a character that is cut at the end as U+FFFD; else leave it out.
    """
    texts = StopTexts(stops)
    with closing(tokens):
        for token in tokens:
            ready = texts.push(detokenizer.push(token))
            if ready:
                yield ready
            if texts.found is not None:
                stats.done_reason = "stop"
                return
    cut = detokenizer.flush() if unfinished else ""
    if rest := texts.push(cut) + texts.flush():
        yield rest
