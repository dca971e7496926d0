"""The engine's thread: it admits requests to slots, runs steps over them and reads results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from queue import Empty, SimpleQueue

from wgpu_backend.engine.batching.completion import Completion, Ticket
from wgpu_backend.engine.batching.constrained import Constrained
from wgpu_backend.engine.batching.drafts import Drafts, cut_back, dropped
from wgpu_backend.engine.batching.intake import Intake
from wgpu_backend.engine.batching.prefix_cache import PrefixCache
from wgpu_backend.engine.batching.results import EngineStatus, SlotStatus
from wgpu_backend.engine.batching.scheduler import steady_shares, step_shares
from wgpu_backend.engine.batching.step import Planned, SteadyShapes, Step, submit
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.runner import Runner
from wgpu_backend.errors import BackendError, CacheFull, DeviceLost, OptionError
from wgpu_backend.nn.batch import BatchShape
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
# Steps in flight at most; with two the device works while the host reads.
STEPS_AHEAD = 2


class Core:
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
        self._reads = model.model.prompt_encoder() is not None
        self._reuses = reuse and not self._reads
        self.prefixes = PrefixCache(model.cache, enabled=self._reuses, host_nbytes=host_nbytes)
        self._runner: Runner = model.attach(self)
        self._constrained = Constrained(self._runner, slots, model.vocabulary)
        self._budget = min(budget, self._runner.chunk)
        fitting = max(1, JUDGED_NBYTES // (4 * model.vocabulary))
        self._judged = min(self._budget, 1 << fitting.bit_length() - 1)
        self._drafts = drafts
        self._shapes: SteadyShapes | None = None
        if deterministic:
            cache, room = self._runner.cache, model.num_ctx
            sizes = (self._budget, slots, drafts.most, self._judged)
            self._shapes = SteadyShapes.of(cache, room, *sizes)
        self._queue: deque[Completion] = deque()
        self._seats: list[Completion | None] = [None] * slots
        self._under_way: deque[Step] = deque()
        # Drafts continue from tokens that the host knows, so no step may be in flight.
        self._ahead = 1 if drafts.most else min(model.depth, STEPS_AHEAD)
        self._intake = intake
        self._stopping = False
        self.ending: Exception = BackendError(f"{model.backend.file.path}: the engine was closed")

    # Called by other threads while they hold the model's lock.

    @property
    def active(self) -> int:
        """Number of running choices."""
        return len(self._seated())

    def give_room(self) -> bool:
        """Evict the least recently used prefix."""
        return self.prefixes.evict()

    def forget(self) -> None:
        """Clear the prefix cache."""
        self.prefixes.clear()

    def status(self) -> EngineStatus:
        """Return the current state and the counters."""
        slots, steps = [each and each.status() for each in self._seats], self._runner.clock.steps
        return self.totals.status(slots, len(self._queue), self.prefixes.kept, steps)

    # The thread.

    def run(self) -> None:
        """Serve until stopped; then fail the remaining requests."""
        while self._take_in():
            try:
                self._model.alone(self.step)
            except DeviceLost as lost:
                self.ending = lost
                break
            except BackendError as failure:
                self._fail_all(failure)
            except BaseException as error:  # a panic of a Rust library is not an Exception
                told = describe_mistake(error) or f"{type(error).__name__}: {error}"
                self.ending = BackendError(f"the engine failed: {told}")
                self.ending.__cause__ = error
                break
        self._intake.close()
        try:
            self._fail_all(self.ending)
        finally:  # in any state, so that no caller waits forever
            self._drain(self.ending)
            self._leave()

    def _leave(self) -> None:
        """Release the cached prefixes, the runner and the draft model."""
        self._drafts.close()
        try:
            self._model.alone(self.prefixes.clear)
            self._model.alone(self._constrained.close)
        except BackendError:  # the model was closed, and the cache with it
            return self._constrained.end_threads()
        return self._model.detach(self, self._runner)

    def _take_in(self) -> bool:
        """Process the inbox, waiting if there is no other work; return False to stop."""
        waiting = any(each.ready for each in self._queue)
        busy = bool(waiting or self._under_way or self._seated())
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
            before = first if self._reuses or ticket.request.prompt_logprobs else None
            made = Completion(ticket, choice, self._model, before)
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
        for each in [*self._queue, *self._seated()]:
            if each.ticket.id == request:
                each.end("cancelled")

    def step(self) -> None:
        """Run one step, and read the step before it."""
        for each, why in [(e, why) for e in self._queue if (why := e.refusal) is not None]:
            self._fail(each, why)
        self._release()
        self._admit()
        if (scales := self._scales()) is None:
            return self._step(self._ahead)
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
        return next((each.ticket.scales for each in self._seated()), None)

    def _read_all(self) -> None:
        while self._under_way:
            self._read(self._under_way.popleft())

    def _step(self, ahead: int) -> None:
        planned = self._plan()
        if step := self._submit(planned) if planned else None:
            self._under_way.append(step)
            self.totals.busy += len(planned)
        # A long pass is read before the next is planned, so that new requests join that one.
        long = sum(count for _, count in planned) > len(self._seats)
        most = len(self._under_way) - 1 if step is None else 0 if long else ahead - 1
        while len(self._under_way) > max(most, 0):
            self._read(self._under_way.popleft())
        self._release()

    # Slots.

    def _seated(self) -> list[Completion]:
        return [each for each in self._seats if each is not None]

    def _release(self) -> None:
        """Free the slots and cache of choices that have ended."""
        left = [each for each in self._queue if not each.finished]
        gone = [each for each in self._queue if each.finished]
        if gone:
            self._queue = deque(left)
        for slot, each in enumerate(self._seats):
            if each is not None and each.finished:
                self._seats[slot] = None
                self.prefixes.end(each.sequence, self._shareable(each))
                gone.append(each)
        if gone:
            self._resume()
            self._count(gone)

    def _count(self, gone: Sequence[Completion]) -> None:
        self.totals.add(gone)
        for each in gone:
            self._drafts.forget(each)
        self._intake.give_back(len(gone))

    def _resume(self) -> None:
        """Resume the paused choice that was submitted first."""
        paused = [each for each in self._seated() if each.paused]
        if paused:
            min(paused, key=lambda each: each.ticket.id).paused = False

    def _admit(self) -> None:
        """Give free slots to waiting choices, first come, first served."""
        for slot, taken in enumerate(self._seats):
            if taken is None:
                found = next((each for each in self._queue if each.ready), None)
                if found is None or not self._together(found) or not self._seat(slot, found):
                    return

    def _together(self, completion: Completion) -> bool:
        """Return whether a choice can share a pass with the running ones: same adapter scales."""
        try:  # adapters may have changed since the request was submitted
            completion.ticket.scales = completion.request.scales(self._model.adapters.scales)
        except OptionError as error:
            self._fail(completion, error)
            return False
        return not self._seated() or completion.ticket.scales == self._scales()

    def _seat(self, slot: int, completion: Completion) -> bool:
        prompt = completion.ticket.tokens
        judges = completion.judges_prompt
        # Cached prefixes were computed with the scales in use.
        scaled = completion.ticket.scales is not None
        sequence, reused = self.prefixes.begin(completion.tokens, reuse=not (judges or scaled))
        if scaled or (judges and self._shapes is not None):
            # Its passes have another shape than prompts', so its last bits may differ.
            self.prefixes.hide(sequence)
        if self._reads and not self._encode(sequence, completion):
            return False
        self._queue.remove(completion)
        # Before `seat`, so that the choice fails with the others if that raises.
        self._seats[slot] = completion
        completion.seat(slot, sequence, self._runner.begins(prompt), reused)
        return True

    def _encode(self, sequence: int, completion: Completion) -> bool:
        """Run the encoder on a prompt; return False if there is no room yet."""
        while True:
            try:
                self._runner.read(sequence, completion.ticket.tokens)
                return True
            except CacheFull as error:
                if self._model.give_room():
                    continue
                self.prefixes.forget(sequence)
                if not self._seated():
                    self._fail(completion, error)
                return False

    # Steps.

    def _plan(self) -> Planned:
        """Plan the next pass: the choices and their numbers of tokens."""
        for each in self._seated():
            self._bring_back(each)
            full = len(each.tokens) > self._model.num_ctx
            if full and each.saved is None and not each.ahead and not each.finished:
                self._make_place(each)
        # Choices may just have ended; their room is free for others.
        self._release()
        seated = self._seated()
        pending = self._judging(seated, [self._pending(each) for each in seated])
        if self._shapes is None:
            shares = step_shares(pending, self._budget)
        else:
            prompts = [min(p, e.pending_prompt) for p, e in zip(pending, seated, strict=True)]
            shares = steady_shares(prompts, pending, self._budget)
        planned = [(each, count) for each, count in zip(seated, shares, strict=True) if count]
        if not planned and not self._under_way and any(each.paused for each in seated):
            self._resume()
            return self._plan()
        self._guess(planned)
        return planned

    def _judging(self, seated: Sequence[Completion], pending: list[int]) -> list[int]:
        """Limit the tokens of choices that need a row of logits for each token.

        With fixed shapes, these choices have passes of their own.
        """
        judged = [
            count > 0 and each.judges_prompt for each, count in zip(seated, pending, strict=True)
        ]
        if not any(judged):
            return pending
        most = max(1, self._judged // sum(judged))
        others = self._shapes is None
        return [
            min(count, most) if judges else count * others
            for judges, count in zip(judged, pending, strict=True)
        ]

    def _guess(self, planned: Planned) -> None:
        """Add draft tokens to answers, if the pass has room for them."""
        if self._shapes is None or not self._reads_prompts(planned):
            columns = self._budget if self._shapes is None else self._shapes.answers.tokens
            self._drafts.guess(planned, columns)

    def _pending(self, completion: Completion) -> int:
        """Return the number of tokens that a choice could compute now, within its context."""
        return max(0, min(completion.pending, self._model.num_ctx - completion.sent))

    def _make_place(self, completion: Completion) -> None:
        """Shift the context by dropping the older half after the kept tokens, or end the choice."""
        if completion.request.when_full == "stop" or self._reads:
            completion.end("length", context_full=True)
            return None
        self.prefixes.hide(completion.sequence)
        while True:
            try:
                return self._shift(completion)
            except CacheFull as error:
                if self.prefixes.evict() or self._model.give_room():
                    continue
                self._preempted((), error)
                if completion.paused or completion.finished:
                    return None

    def _shift(self, completion: Completion) -> None:
        """Drop positions and move those after them; raises CacheFull without side effects."""
        keep, end = completion.going
        cache, sequence = self._runner.cache, completion.sequence
        if self._moves and cache.can_shift(sequence, keep, end):
            cache.shift(sequence, keep, end)
        else:
            cache.remove(sequence, keep)  # the rest is computed again
        completion.drop(keep, end, cache.length(sequence))
        self._drafts.forget(completion)

    def _submit(self, planned: Planned) -> Step | None:
        """Submit a pass; if the cache is full, evict prefixes, then pause choices."""
        while planned:
            try:
                step = submit(self._runner, self._constrained, planned, self._shape_of(planned))
            except CacheFull as error:
                if dropped(planned) or self.prefixes.evict() or self._model.give_room():
                    continue
                planned = self._preempted(planned, error)
            else:
                for each, _ in planned:
                    self.prefixes.note(each.sequence, self._shareable(each))
                return step
        return None

    def _shape_of(self, planned: Planned) -> BatchShape | None:
        """Return the fixed shape of a pass; None if shapes depend on the batch."""
        if self._shapes is None:
            return None
        if any(each.judges_prompt for each, _ in planned):
            return self._shapes.judged
        return self._shapes.prompts if self._reads_prompts(planned) else self._shapes.answers

    @staticmethod
    def _reads_prompts(planned: Planned) -> bool:
        return any(each.pending_prompt for each, _ in planned)

    def _shareable(self, completion: Completion) -> int:
        """Return the number of positions that other requests may reuse.

        The newest token may not be in the cache, and draft tokens after it may be wrong. With fixed
        shapes only the prompt counts, since decode steps give other last bits than prompt passes.
        """
        if self._shapes is not None:
            return completion.shareable
        return min(completion.sent, len(completion.tokens))

    def _preempted(self, planned: Planned, error: CacheFull) -> Planned:
        """Pause the choice that was submitted last, to free its room."""
        holding = [each for each in self._seated() if each.sent or not each.paused]
        holding = [each for each in holding if each.saved is None]
        last = max(holding, key=lambda each: (each.ticket.id, each.choice))
        if len(holding) == 1:
            self._fail(last, error)
        else:
            self._pause(last)
        return [(each, count) for each, count in planned if each is not last]

    def _pause(self, completion: Completion) -> None:
        """Pause a choice; save its cache if its tokens alone could not recompute it.

        Keys and values that a shift moved depend on dropped tokens, and a text that an encoder read
        is not among the tokens of the answer.
        """
        cache, sequence = self._runner.cache, completion.sequence
        moves = self._moves and completion.request.when_full == "shift"
        completion.paused = True
        if self._reads or (moves and completion.sent):
            completion.saved = cache.save(sequence)
            cache.remove(sequence)
        else:
            completion.sent = cache.remove(sequence)
        self.prefixes.hide(sequence)

    def _bring_back(self, completion: Completion) -> None:
        """Restore the saved cache of a resumed choice, or let it wait for more room."""
        while completion.saved is not None and not completion.paused and not completion.finished:
            try:
                self._runner.cache.restore(completion.sequence, completion.saved)
                completion.saved = None
            except CacheFull as error:
                if self.prefixes.evict() or self._model.give_room():
                    continue
                others = [each for each in self._seated() if each is not completion]
                if not all(each.away for each in others):
                    completion.paused = True
                else:
                    self._fail(completion, error)

    @property
    def _moves(self) -> bool:
        """Return whether shifts move cached positions; else they are computed again."""
        return self._shapes is None and not self._reads

    def _read(self, step: Step) -> None:
        for each, error in step.read():
            self._fail(each, error)
        if self._drafts.most:
            cut_back(self._runner.cache, step.chosen)

    # Failures.

    def _fail(self, completion: Completion, error: Exception) -> None:
        """Fail the request of a choice with an error."""
        for each in [*self._queue, *self._seated()]:
            if each.ticket is completion.ticket and not each.finished:
                each.outcome = "failed"
        completion.ticket.mailbox.fail(error)

    def _fail_all(self, error: Exception) -> None:
        """Fail every request, and drop its cache, which may be incomplete."""
        self._under_way.clear()
        for each in [*self._queue, *self._seated()]:
            self._fail(each, error)
        gone = self._seated()
        self._seats[:] = [None] * len(self._seats)
        self._count([*self._queue, *gone])
        self._queue.clear()

        def forget() -> None:
            for each in gone:
                self.prefixes.forget(each.sequence)

        try:
            self._model.alone(forget)
        except BackendError:  # it was closed, and the cache with it
            return
