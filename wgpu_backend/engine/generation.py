"""One sequence, token by token: prompt, sampling, stops, and what it cost."""

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
    done_reason : str or None
        Why it ended, in Ollama's words: ``stop`` (an end token or a stop text), ``length`` (as many
        tokens as asked for, or as the context holds); None when it was broken off.
    context_full : bool
        Whether it ended because the context is full.
    dropped_messages : int
        The oldest messages of a conversation that were left out, as the context holds no more.
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
    """A sequence in the cache and the tokens it stands for; a next prompt reuses what is equal.

    Parameters
    ----------
    sequence : int
    tokens : list of int
        What the cache has; tokens that a stream has under way are not among them.
    turn : int
        Counts who used the session: only the last may go on.
    user : str
        What that one is, in words.
    active : bool
        Whether a stream is under way, which needs what the cache has.
    calls : Turns
        Calls that need the session to their end take turns.
    """

    sequence: int = 0
    tokens: list[int] = field(default_factory=list[int])
    turn: int = 0
    user: str = ""
    active: bool = False
    calls: Turns = field(default_factory=Turns)

    def claim(self, user: str) -> int:
        """Take the session over; who had it before is told by another `turn`."""
        self.turn += 1
        self.user, self.active = user, False
        return self.turn


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
    depth : int
        Steps under way at most, see `PipelinedDecoder`: with more than one, the device goes on
        while the host looks at what it made. The tokens are the same.
    call : str
        Name of the method that the stream belongs to, for messages.
    make_room : callable
        Called where the cache has no room; false where nobody else could give any.
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
        """Compute the prompt and give tokens until an end.

        Raises
        ------
        ContextFull
            The prompt is empty or longer than the context.
        BackendError
            Somebody else used the session since the last token.
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
        """Token after the prompt, whose equal beginning the cache may hold already."""
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
        """Submit what the cache has not; as often as somebody else can give room for it."""
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
        """Give `token` and those after it; the session has all but the one given last."""
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
                    f"{stats.tokens} of this stream; streams side by side need a session each: "
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
        """Cut the cache back to the session's tokens, unless somebody else has it now."""
        self._steps.forget()
        session = self._session
        if session.turn == turn:
            session.active = False
            left = self._runner.cache.remove(session.sequence, len(session.tokens))
            del session.tokens[left:]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
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
    """Text of a token stream, held back while it may be the beginning of a stop text.

    Parameters
    ----------
    tokens : generator of int
        Closed at the end, however that comes about.
    detokenizer : Detokenizer
    stops : sequence of str
        Texts that end the stream; they are not given.
    stats : Stats
        Gets the reason when a stop text ended it.
    unfinished : bool
        Give a character that the end cuts as U+FFFD; else it is left out.
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
