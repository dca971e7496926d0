"""The engine's thread: it admits requests to slots, runs steps over them and reads results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from queue import Empty, SimpleQueue

from wgpu_backend.engine.batching.completion import Completion, Ticket
from wgpu_backend.engine.batching.constrained import Constrained
from wgpu_backend.engine.batching.drafts import Drafts
from wgpu_backend.engine.batching.intake import Intake
from wgpu_backend.engine.batching.loop import LoopOptions, TokenLoop
from wgpu_backend.engine.batching.prefix_cache import PrefixCache
from wgpu_backend.engine.batching.results import EngineStatus, SlotStatus
from wgpu_backend.engine.batching.step import SteadyShapes
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.media import Inserted, Placed
from wgpu_backend.engine.runner import CHUNK
from wgpu_backend.errors import BackendError, DeviceLost, OptionError, WorkerLost
from wgpu_backend.ops.plugins import describe_mistake


@dataclass(slots=True)
class Totals:
    """The number of requests, and sums over choices that have ended."""

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    guessed_tokens: int = 0
    right_guesses: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    longest: int = 0
    drafts: int = 0
    busy: int = 0

    def add(self, gone: Sequence[Completion]) -> None:
        """Add choices that have ended."""
        for each in gone:
            self.finished += each.outcome == "finished"
            self.cancelled += each.outcome == "cancelled"
            self.failed += each.outcome == "failed"
            self.prompt_tokens += len(each.ticket.tokens)
            self.cached_tokens += each.cached
            self.completion_tokens += each.made
            self.guessed_tokens += each.guesses
            self.right_guesses += each.right_guesses
            self.prompt_seconds += each.usage.prompt_seconds
            self.seconds += each.usage.seconds
            self.longest = max(self.longest, len(each.tokens))
            self.drafts += each.drafts

    def status(
        self,
        slots: Sequence[SlotStatus | None],
        queued: int,
        kept: tuple[int, int],
        steps: int,
    ) -> EngineStatus:
        """Combine the counters with the current state; see `EngineStatus`."""
        return EngineStatus(tuple(slots), queued, *kept, steps, *astuple(self))


# Most bytes of logits that one pass reads back for `prompt_logprobs`.
JUDGED_NBYTES = 64 << 20
# Steps in flight at most; with two the device works while the host reads, and requests that come
# join soon.
STEPS_AHEAD = 2


class Core(TokenLoop):
    """The state of an engine's thread, which no other thread may touch while it runs.

    Parameters
    ----------
    slots : int
        Choices that run at once.
    budget : int
        Most tokens of a step.
    intake : Intake
        Admission control, notified of choices that have ended.
    reuse : bool
        Whether prefixes are cached and shared.
    deterministic : bool
        Whether all passes have one of a few fixed shapes.
    host_nbytes : int
        See `PrefixCache`.

    Attributes
    ----------
    inbox : SimpleQueue
        Tickets to enqueue; numbers of requests to cancel; functions to call between two steps;
        None to stop. A finaliser may put items there at any time.
    ending : Exception
        Reason for the end of the thread.
    """

    def __init__(
        self,
        model: LanguageModel,
        slots: int,
        budget: int,
        intake: Intake,
        *,
        reuse: bool,
        deterministic: bool,
        drafts: Drafts,
        host_nbytes: int,
    ) -> None:
        self.inbox: SimpleQueue[Ticket | int | Callable[[], object] | None] = SimpleQueue()
        self.totals = Totals()
        self._model = model
        # What an encoder reads is no prefix of the answer's tokens.
        self._reuses = reuse and model.model.prompt_encoder() is None
        prefixes = PrefixCache(model.cache, enabled=self._reuses, host_nbytes=host_nbytes)
        self.prefixes = prefixes
        runner = model.attach(self)
        fitting = max(1, JUDGED_NBYTES // (4 * model.vocabulary))
        # A request that is alone may take longer steps, unless the caller wants shorter ones.
        alone = runner.chunk if budget == CHUNK else min(budget, runner.chunk)
        budget = min(budget, runner.chunk)
        judged = min(budget, 1 << fitting.bit_length() - 1)
        shapes: SteadyShapes | None = None
        if deterministic:
            sizes = (budget, slots, drafts.most, judged)
            rows = model.towers.row_kinds
            shapes = SteadyShapes.of(runner.cache, model.num_ctx, *sizes, rows)
        # Drafts continue from tokens that the host knows, so no step may be in flight.
        ahead = 1 if drafts.most else min(model.depth, STEPS_AHEAD)
        # A pass of fixed shape takes as long for one group as for all, so groups gain nothing.
        groups = 1 if deterministic or drafts.most else runner.processors
        super().__init__(
            runner,
            Constrained(runner, slots, model.vocabulary),
            model.info,
            prefixes,
            lambda: prefixes.evict() or model.give_room(),
            LoopOptions(slots, 0, budget, judged, ahead, shapes=shapes, alone=alone, groups=groups),
            drafts,
        )
        self._queue: deque[Completion] = deque()
        self._intake = intake
        self._stopping = False
        self.ending: Exception = BackendError(f"{model.backend.file.path}: the engine was closed")

    def require_room(self, placed: Sequence[Placed]) -> None:
        """Raise if a pass of fixed shape cannot take a picture.

        Raises
        ------
        OptionError
            It has more rows that attend to each other than a pass has tokens.
        """
        if self._shapes is None or not placed:
            return
        rows = Inserted(placed, 0, turns=False).longest
        if rows > self._options.budget:
            fits = rows <= self._runner.chunk
            remedy = f"with {rows} at least" if fits else "without deterministic"
            raise OptionError(
                f"batch_tokens: {self._options.budget} in deterministic passes, a picture has "
                f"{rows} rows that attend to each other; make the engine {remedy}"
            )

    # Called by other threads while they hold the model's lock.

    @property
    def active(self) -> int:
        """Number of running choices."""
        return len(self._running())

    def give_room(self) -> bool:
        """Evict the least recently used prefix."""
        return self.prefixes.evict()

    def forget(self) -> None:
        """Clear the prefix cache."""
        self.prefixes.clear()

    def status(self) -> EngineStatus:
        """Return the current state and the counters."""
        slots, steps = [each and each.status() for each in self._seats], self._runner.clock.steps
        self.totals.busy = self.busy
        return self.totals.status(slots, len(self._queue), self.prefixes.kept, steps)

    # The thread.

    def run(self) -> None:
        """Serve until stopped; then fail the remaining requests."""
        while self._take_in():
            try:
                self._model.alone(self.step)
            except DeviceLost as lost:
                try:
                    self._go_on_after(lost)
                except BackendError as failure:
                    self.ending = failure
                    break
            except BackendError as failure:
                self._fail_all(failure)
            # A panic of a Rust library is not an Exception.
            except BaseException as error:
                reason = describe_mistake(error) or f"{type(error).__name__}: {error}"
                self.ending = BackendError(f"the engine failed: {reason}")
                self.ending.__cause__ = error
                break
        self._intake.close()
        try:
            self._fail_all(self.ending)
        finally:
            # In any state, so that no caller waits forever.
            self._drain(self.ending)
            self._leave()

    def _go_on_after(self, lost: DeviceLost) -> None:
        """Reopen the lost device of another node; running requests fail.

        Raises
        ------
        DeviceLost
            It is of this machine, or cannot be opened again.
        """
        if self._model.lost is None:
            raise lost
        self._fail_all(
            WorkerLost(f"{lost}; it is opened again, send the request again"), queued=False
        )
        self._model.reopen()

    def _leave(self) -> None:
        """Release the cached prefixes, the runner and the draft model."""
        self._drafts.close()
        try:
            self._model.alone(self.prefixes.clear)
            self._model.alone(self._constrained.close)
        except BackendError:
            # The model was closed, and the cache with it.
            return self._constrained.end_threads()
        return self._model.detach(self, self._runner)

    def _take_in(self) -> bool:
        """Process the inbox, waiting if there is no other work; return False to stop."""
        waiting = any(each.ready for each in self._queue)
        busy = bool(waiting or self._in_flight or self._running())
        try:
            while not self._stopping:
                self._take(self.inbox.get(block=not busy))
                busy = True
        except Empty:
            pass
        return not self._stopping

    def _take(self, item: Ticket | int | Callable[[], object] | None) -> None:
        if item is None:
            self._stopping = True
        elif isinstance(item, Ticket):
            self.totals.requests += 1
            self._enqueue(item)
        elif isinstance(item, int):
            self._cancel(item)
        else:
            item()

    def _enqueue(self, ticket: Ticket) -> None:
        first: Completion | None = None
        for choice in range(ticket.request.n):
            # Later choices wait until the first has computed the prompt, and share it.
            before = first if self._reuses or ticket.request.prompt_logprobs else None
            made = Completion(ticket, choice, self._info, before)
            first = first or made
            self._queue.append(made)

    def _drain(self, error: Exception) -> None:
        """Fail the requests that are still in the inbox."""
        while True:
            try:
                item = self.inbox.get_nowait()
            except Empty:
                return
            if isinstance(item, Ticket):
                item.mailbox.fail(error)

    def _cancel(self, request: int) -> None:
        for each in self._open():
            if each.ticket.id == request:
                each.end("cancelled")

    def step(self) -> None:
        """Admit requests, submit the next passes, and read earlier ones.

        Raises
        ------
        DeviceLost
            A device of another node was lost, maybe while nothing ran.
        """
        if (lost := self._model.lost) is not None:
            raise lost
        for each, why in [(e, why) for e in self._queue if (why := e.refusal) is not None]:
            self._fail(each, why)
        self._release()
        self._admit()
        if (scales := self._scales()) is None:
            return super().step()
        # The scales are restored after the step: other users of the model need those in use.
        self._read_all()
        adapters = self._model.adapters
        try:
            adapters.scale(scales)
            self._step(0)
            return self._read_all()
        finally:
            adapters.scale(adapters.scales)

    def _scales(self) -> tuple[float, ...] | None:
        """Return the adapter scales of the running choices; None for those in use."""
        return next((each.ticket.scales for each in self._running()), None)

    # Slots.

    def _release(self) -> list[Completion]:
        gone = super()._release()
        waiting = [each for each in self._queue if each.finished]
        if waiting:
            self._queue = deque(each for each in self._queue if not each.finished)
            self._resume()
        self._count([*waiting, *gone])
        return gone

    def _count(self, gone: Sequence[Completion]) -> None:
        """Count choices that have ended."""
        if not gone:
            return
        self.totals.add(gone)
        for each in gone:
            self._drafts.forget(each)

    def _admit(self) -> None:
        """Give free slots to waiting choices, first come, first served."""
        for slot, taken in enumerate(self._seats):
            if taken is None:
                found = next((each for each in self._queue if each.ready), None)
                if found is None or not self._together(found) or not self._seat(slot, found):
                    return

    def _together(self, completion: Completion) -> bool:
        """Return whether a choice can share a pass with the running ones: same adapter scales."""
        # Adapters may have changed since the request was submitted.
        try:
            completion.ticket.scales = completion.request.scales(self._model.adapters.scales)
        except OptionError as error:
            self._fail(completion, error)
            return False
        return not self._running() or completion.ticket.scales == self._scales()

    def _seat(self, slot: int, completion: Completion) -> bool:
        begun = self.begin(completion)
        if begun is None:
            return False
        self._queue.remove(completion)
        self.seat(slot, completion, *begun)
        return True

    # Failures.

    def _open(self) -> list[Completion]:
        return [*self._queue, *self._running()]

    def _fail_all(self, error: Exception, *, queued: bool = True) -> None:
        """Fail every request, and drop its cache, which may be incomplete.

        Parameters
        ----------
        queued : bool
            Whether requests that have no slot yet fail, too; other choices of a request that has
            one always do.
        """
        self._in_flight.clear()
        self._failure = None
        for each in self._open() if queued else self._running():
            self._fail(each, error)
        gone = self._running()
        self._seats[:] = [None] * len(self._seats)
        failed = [each for each in self._queue if queued or each.finished]
        self._queue = deque(each for each in self._queue if not (queued or each.finished))
        self._count([*failed, *gone])

        def forget() -> None:
            for each in gone:
                self.prefixes.forget(each.sequence)

        try:
            self._model.alone(forget)
        except BackendError:
            # The model was closed, and the cache with it.
            return
