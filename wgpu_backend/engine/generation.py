"""Sessions and the streams of their answers: prefix reuse, take-over and statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from wgpu_backend.engine.batching.completion import Completion, ModelInfo, Ticket
from wgpu_backend.engine.batching.constrained import Constrained
from wgpu_backend.engine.batching.loop import TOGETHER, LoopOptions, TokenLoop
from wgpu_backend.engine.batching.results import Event
from wgpu_backend.engine.runner import Runner
from wgpu_backend.engine.step_sampler import MOST_AHEAD
from wgpu_backend.engine.stop_texts import StopTexts
from wgpu_backend.engine.turns import Turns
from wgpu_backend.errors import BackendError, ContextFull, OptionError
from wgpu_backend.nn.kvcache.cache import Cache
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
        Tokens in the cache, without those of a stream that is running.
    turn : int
        Number of the session's latest user; only that one may continue.
    user : str
        Description of that user, for messages.
    active : bool
        Whether a stream is running, so that its part of the cache must stay.
    calls : Turns
        FIFO lock of calls that need the session until they end.
    """

    cache: Cache
    sequence: int = 0
    tokens: list[int] = field(default_factory=list[int])
    turn: int = 0
    user: str = ""
    active: bool = False
    calls: Turns = field(default_factory=Turns)
    _running: Sequence[int] = ()

    def claim(self, user: str) -> int:
        """Take the session over; a new `turn` lets the former user detect it."""
        self.turn += 1
        self.user, self.active = user, False
        return self.turn

    # The interface for a token loop; see `Prefixes`.

    def begin(self, tokens: Sequence[int], *, reuse: bool = True) -> tuple[int, int]:
        """Cut the cache back to the common prefix with a prompt, and return its length."""
        common = _common(self.tokens, tokens[:-1]) if reuse else 0
        same = self.cache.remove(self.sequence, common)
        del self.tokens[same:]
        self._running, self.active = tokens, True
        return self.sequence, same

    def note(self, sequence: int, computed: int) -> None:
        """Do nothing: no other sequence reuses this one."""

    def end(self, sequence: int, computed: int) -> None:
        """Keep so many tokens of the stream, which has ended."""
        left = self.cache.remove(self.sequence, computed)
        self.tokens = [*self._running[:left]]
        self.active = False

    def forget(self, sequence: int | None = None) -> None:
        """Drop all tokens."""
        self.tokens.clear()
        self.cache.remove(self.sequence)

    def hide(self, sequence: int) -> None:
        """Do nothing: no other sequence reuses this one."""


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if len(different) else size


class TokenStream:
    """A stream of one session's answer, computed by the thread that reads it.

    The session's cache stays correct even if the stream is interrupted.

    Parameters
    ----------
    ticket : Ticket
        The request and its compiled grammar.
    depth : int
        Steps in flight at most, see ``batching/loop.py``: with more than one, the device works
        while the host processes tokens. The tokens are the same.
    call : str
        Name of the calling method, for messages.
    make_room : callable
        See `TokenLoop`.

    Raises
    ------
    OptionError
        `depth` is less than 1 or more than 8.
    """

    def __init__(
        self,
        runner: Runner,
        constrained: Constrained,
        model: ModelInfo,
        session: Session,
        ticket: Ticket,
        depth: int = 1,
        *,
        call: str = "generate",
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        if not 1 <= depth <= MOST_AHEAD:
            raise OptionError(f"depth: {depth} steps in flight, needs 1 to {MOST_AHEAD}")
        self._call = call
        self._model = model
        self._session = session
        self._ticket = ticket
        self.stats = Stats()
        options = LoopOptions(
            slots=1,
            first_slot=session.sequence,
            budget=runner.chunk,
            judged=runner.chunk,
            ahead=depth,
            together=TOGETHER,
        )
        self._loop = TokenLoop(runner, constrained, model, session, make_room, options)

    def run(self) -> Generator[Event]:
        """Compute the prompt and yield an event for each token until the end.

        Raises
        ------
        ContextFull
            The prompt is empty or longer than the context.
        BackendError
            Another call used the session since the last token.
        """
        self._check(self._ticket.tokens)
        session, stats = self._session, self.stats
        turn = session.claim(f"another call of {self._call}()")
        begin = time.perf_counter()
        try:
            for event in self._events():
                if not stats.prompt_seconds:
                    stats.prompt_seconds = time.perf_counter() - begin
                    begin = time.perf_counter()
                self._note(event)
                yield event
                if event.finish is not None:
                    return
                if session.turn != turn:
                    raise BackendError(
                        f"{self._call}: {session.user} took the session over after token "
                        f"{stats.tokens} of this stream; concurrent streams need a session each: "
                        "model.session()"
                    )
        finally:
            if stats.prompt_seconds:
                stats.seconds = time.perf_counter() - begin
            # Another call that took the session over has the cache now.
            if session.turn == turn:
                self._loop.stop()
                session.active = False

    def _check(self, prompt: Sequence[int]) -> None:
        room = self._model.num_ctx
        if not prompt:
            raise ContextFull(f"{self._call}: the prompt has 0 tokens, needs at least 1")
        if len(prompt) > room:
            raise ContextFull(
                f"{self._call}: the prompt has {len(prompt)} tokens, the context holds {room}; "
                "shorten it or load the model with a larger num_ctx"
            )

    def _events(self) -> Iterator[Event]:
        """Step the loop, and yield the events of the answer."""
        loop, mailbox = self._loop, self._ticket.mailbox
        completion = Completion(self._ticket, 0, self._model)
        if (begun := loop.begin(completion)) is not None:
            loop.seat(0, completion, *begun)
        self.stats.reused_tokens = completion.cached
        self.stats.prompt_tokens = len(self._ticket.tokens) - completion.cached
        while True:
            while not mailbox.has(0):
                loop.step()
            yield from mailbox.take()
            if mailbox.error is not None:
                raise mailbox.error

    def _note(self, event: Event) -> None:
        self.stats.tokens += len(event.tokens)
        if event.finish is not None and event.finish.reason != "cancelled":
            self.stats.done_reason = event.finish.reason
            self.stats.context_full = event.finish.context_full


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
