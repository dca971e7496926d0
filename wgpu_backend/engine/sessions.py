"""Sessions: sequences that share a model's KV cache, and the locks around them.

Streams of several sessions alternate step by step. Each has its own slots and blocks, so they do
not affect each other. The cache of an idle session is kept only for reuse, and is dropped when
another session needs the room.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol, TypeVar

import numpy as np

from wgpu_backend.device.interrupts import held, uninterrupted
from wgpu_backend.engine.batching.completion import Completion, ModelInfo, Ticket
from wgpu_backend.engine.batching.constrained import Constrained
from wgpu_backend.engine.batching.generation import Mailbox
from wgpu_backend.engine.batching.loop import TOGETHER, LoopOptions, TokenLoop
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event
from wgpu_backend.engine.fifo_lock import FifoLock
from wgpu_backend.engine.runner import CHUNK, TOKEN_SLOTS, Runner
from wgpu_backend.engine.step_sampler import MOST_AHEAD
from wgpu_backend.errors import BackendError, CacheFull, ContextFull, OptionError
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.text.grammar import Matcher

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
    calls: FifoLock = field(default_factory=FifoLock)
    _running: Sequence[int] = ()

    def claim(self, user: str) -> int:
        """Take the session over; a new `turn` lets the former user detect it."""
        self.turn += 1
        self.user, self.active = user, False
        return self.turn

    # The interface for a token loop; see `Prefixes`.

    def begin(self, tokens: Sequence[int], *, reuse: bool = True) -> tuple[int, int]:
        """Cut the cache back to the common prefix with a prompt, and return its length."""
        # The last token is computed again, since its logits choose the next one.
        common = _common(self.tokens, tokens[:-1]) if reuse else 0
        same = self.cache.remove(self.sequence, common)
        del self.tokens[same:]
        self._running, self.active = tokens, True
        return self.sequence, same

    def note(self, sequence: int, computed: int) -> None:
        """Do nothing: no other sequence reuses this one."""

    def end(self, sequence: int, computed: int) -> None:
        """Keep the first `computed` tokens of the stream, which has ended."""
        # Recurrent states resume only at checkpoints, so fewer positions may be left.
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
            judged=min(runner.chunk, CHUNK),
            ahead=depth,
            together=TOGETHER,
        )
        self._loop = TokenLoop(runner, constrained, model, session, make_room, options)

    def run(self) -> Generator[Event | None]:
        """Compute the prompt and yield an event for each token until the end.

        After each piece of a tower it yields None: others may use the model before it goes on.

        Raises
        ------
        ContextFull
            The prompt is empty or longer than the context.
        BackendError
            Another call used the session since the last token.
        """
        self._check(self._ticket.tokens)
        session, stats = self._session, self.stats
        # After the checks: a call that is refused must not end the stream that is running.
        turn = session.claim(f"another call of {self._call}()")
        begin = time.perf_counter()
        try:
            for event in self._events():
                if event is not None and not stats.prompt_seconds:
                    stats.prompt_seconds = time.perf_counter() - begin
                    begin = time.perf_counter()
                if event is not None:
                    self._note(event)
                yield event
                if event is not None and event.finish is not None:
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

    def _events(self) -> Iterator[Event | None]:
        """Step the loop, and yield the events of the answer, and None after pieces of a tower."""
        loop, mailbox = self._loop, self._ticket.mailbox
        completion = Completion(self._ticket, 0, self._model)
        if (begun := loop.begin(completion)) is not None:
            loop.seat(0, completion, *begun)
        self.stats.reused_tokens = completion.cached
        self.stats.prompt_tokens = len(self._ticket.tokens) - completion.cached
        while True:
            while not mailbox.has(0):
                loop.step()
                if loop.is_encoding:
                    yield None
            # Tokens that came before an error are the caller's.
            yield from mailbox.take()
            if mailbox.error is not None:
                raise mailbox.error

    def _note(self, event: Event) -> None:
        self.stats.tokens += len(event.tokens)
        if event.finish is not None and event.finish.reason != "cancelled":
            self.stats.done_reason = event.finish.reason
            self.stats.context_full = event.finish.context_full


# Each session has a token slot for each step that it may have in flight.
MOST_SESSIONS = TOKEN_SLOTS // MOST_AHEAD
Item = TypeVar("Item")


class CacheUser(Protocol):
    """The interface of another user of the cache: an engine that serves many requests."""

    @property
    def active(self) -> int:
        """Number of running requests, whose part of the cache must stay."""
        ...

    def give_room(self) -> bool:
        """Drop something that is kept only for reuse; return False if there is nothing."""
        ...

    def forget(self) -> None:
        """Drop all that is kept for reuse, because the model changed."""
        ...


class Sessions:
    """The sessions of one model.

    Attributes
    ----------
    turns : Turns
        FIFO lock of the threads that use the model.
    cache_users : list of Neighbour
        Other users of the cache, notified if room is short or the model changes.
    main : Session
        The model's own session, which always exists.
    """

    def __init__(self, runner: Runner, model: ModelInfo) -> None:
        self.turns = FifoLock()
        self.cache_users: list[CacheUser] = []
        self.main = Session(runner.cache)
        self._runner = runner
        self._model = model
        # One row is enough: a step has the tokens of one session.
        self._constrained = Constrained(runner, 1, model.vocabulary)
        # The session used last comes last, so room is taken from the front.
        self._open = [self.main]
        self._left: deque[Callable[[], object]] = deque()
        self._closed = False

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding; raises if the model was closed."""
        self.require_open()
        return self._model.vocabulary

    def require_open(self) -> None:
        """Raise if the model was closed.

        Raises
        ------
        BackendError
            The model was closed.
        """
        if self._closed:
            raise BackendError(f"{self._model.name}: the model was closed; load it again")

    def alone(self, session: Session, act: Callable[[], Item]) -> Item:
        """Run a function of a session while no other thread uses or closes the model."""
        nested = self.turns.mine()

        @uninterrupted
        def tidy_and_act() -> Item:
            self.require_open()
            # Finalisers left these; within a nested call a stream may be in the middle of a step.
            while self._left and not nested:
                self._left.popleft()()
            self._require(session)
            return act()

        return self.turns.take(tidy_and_act)

    def change(self, asked: str, act: Callable[[], bool]) -> None:
        """Run a function that may change the model, if no stream is running.

        Keys, values and states in the cache belong to the former model: if `act` returns True, the
        cache is cleared and sessions compute their texts again.

        Raises
        ------
        BackendError
            A stream is running; `act` was not called.
        """

        def apply() -> None:
            active = [each for each in self._open if each.active]
            if active:
                raise BackendError(
                    f"{asked}: {self._model.name}: {len(active)} of {len(self._open)} sessions "
                    "have a running stream, which would continue with another model; end it first"
                )
            if requests := sum(each.active for each in self.cache_users):
                raise BackendError(
                    f"{asked}: {self._model.name}: {requests} requests of an engine are "
                    "running, which would continue with another model; wait for them or cancel them"
                )
            if act():
                for user in self.cache_users:
                    user.forget()
                for session in self._open:
                    session.forget()

        self.alone(self.main, apply)

    def open(self, owner: object) -> Session:
        """Add a session, which is closed when its owner is collected.

        Raises
        ------
        BackendError
            The model has no token slots for another session.
        """
        return self.alone(self.main, lambda: self._open_session(owner))

    def _open_session(self, owner: object) -> Session:
        taken = {session.sequence for session in self._open}
        free = next((n for n in range(MOST_SESSIONS) if n not in taken), None)
        if free is None:
            raise BackendError(
                f"{self._model.name}: {len(taken) - 1} sessions are open, a model has places for "
                f"{MOST_SESSIONS - 1}; close one"
            )
        session = Session(self._runner.cache, free)
        self._open.append(session)
        # A finaliser may run on any thread at any time, so it must not wait for the lock.
        finaliser = weakref.finalize(owner, self._left.append, lambda: self._forget(session))
        # At exit all memory goes anyway.
        finaliser.atexit = False
        return session

    def _require(self, session: Session) -> None:
        if session not in self._open:
            raise BackendError(
                f"{self._model.name}: the session was closed; begin another one with "
                "model.session()"
            )

    def close_one(self, session: Session) -> None:
        """Close a session; safe to call again."""
        if not self._closed:
            self.turns.take(lambda: self._forget(session))

    @uninterrupted
    def _forget(self, session: Session) -> None:
        if session not in self._open or self._closed:
            return
        # A stream of the session calls `_require` first, so it raises from now on. It must not
        # cut the cache back when it ends: the sequence may belong to another session then.
        self._open = [each for each in self._open if each is not session]
        session.claim("close()")
        session.forget()

    def stream(
        self,
        session: Session,
        request: Request,
        depth: int,
        call: str,
        matcher: Matcher | None = None,
    ) -> TokenStream:
        """Make a stream of a session's answer, constrained by the grammar of a matcher."""
        self.require_open()
        self._require(session)
        ticket = Ticket(0, request, [*request.tokens], Mailbox(1), stepwise=True)
        if matcher is not None:
            ticket.matcher = _complete(matcher)
        if request.options.dries:
            ticket.breakers = _complete(self._model.spelling.of(request.options))
        return TokenStream(
            self._runner,
            self._constrained,
            self._model,
            session,
            ticket,
            depth,
            call=call,
            make_room=lambda: self._make_room(session),
        )

    def items(self, session: Session, items: Generator[Item | None]) -> Generator[Item]:
        """Yield the items of a stream, each computed while no other thread uses the model.

        Where the stream yields None, others have their turn. The first item waits for calls that
        need the session until they end.
        """

        def take_one() -> list[Item | None]:
            return list(islice(items, 1))

        def use_last() -> None:
            self._open.remove(session)
            self._open.append(session)

        def take_first() -> list[Item | None]:
            self.alone(session, use_last)
            made: list[Item | None] = [None]
            while made and made[0] is None:
                made = self.alone(session, take_one)
            return made

        try:
            made = session.calls.take(take_first)
            while made:
                if made[0] is not None:
                    yield made[0]
                made = self.alone(session, take_one)
        finally:
            # A generator may be finalised on any thread, which must not wait for another.
            with held():
                if not self.turns.offer(items.close):
                    self._left.append(items.close)

    def with_room(self, session: Session, act: Callable[[], Item]) -> Item:
        """Run a function, and retry on CacheFull while room can be freed."""
        while True:
            try:
                return act()
            except CacheFull:
                if not self._make_room(session):
                    raise

    def _make_room(self, asking: Session) -> bool:
        """Free the cache of the least recently used idle session.

        Raises
        ------
        CacheFull
            Sessions with running streams fill the cache.
        """
        cache = self._runner.cache
        if self.give_room(asking) or any(each.give_room() for each in self.cache_users):
            return True
        held = sum(cache.length(each.sequence) for each in self._open if each is not asking)
        if not held:
            return False
        raise CacheFull(
            f"{self._model.name}: streams of other sessions hold {held} of the context's "
            f"{self._model.num_ctx} positions and this one {cache.length(asking.sequence)}, no "
            "more are free; end one, or load the model with a larger num_ctx"
        )

    def give_room(self, asking: Session | None = None) -> bool:
        """Clear the least recently used idle session; return False if none has anything cached."""
        for session in self._open:
            idle = session is not asking and not session.active
            if idle and self._runner.cache.length(session.sequence):
                session.forget()
                return True
        return False

    def close(self, release: Callable[[], object]) -> None:
        """Close the model; streams and waiting threads raise from now on. Safe to call again."""
        # Before the lock, so that threads that wait for it raise when their turn comes.
        self._closed = True

        @uninterrupted
        def release_all() -> None:
            # Closing these streams and sessions one by one is needless: the whole cache goes.
            self._left.clear()
            self._constrained.close()
            release()

        self.turns.take(release_all)


def _complete(value: Item) -> Future[Item]:
    """Return a future that is complete."""
    future: Future[Item] = Future()
    future.set_result(value)
    return future
