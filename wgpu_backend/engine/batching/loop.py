"""The token loop: steps over the choices in slots, submitted ahead of the results.

::

    submit 0 ─ 1 ─ 2 ─ 3         4         5            depth 4: what the host does
                       read 0 ─▶ read 1 ─▶ read 2       between two reads costs nothing

Positions, slots and block tables are known in advance, and the tokens stay on the device, so the
device works while the host processes earlier tokens. The host sees an end some steps late; tokens
after it are dropped, and the cache is cut back.

Short steps of a lone choice, which are dominated by host time, are submitted in pairs to save host
time; while one pair is read the next one runs::

    submit 0+1 ─ 2+3               4+5
                     read 0 ─ 1 ─▶     read 2 ─ 3

An `Engine` has a loop of many slots, see ``core.py``. A stream of a session has a loop of one slot,
stepped by the caller's thread; see ``engine/sessions.py``.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from wgpu_backend.engine.batching.completion import Completion, ModelInfo
from wgpu_backend.engine.batching.constrained import Constrained
from wgpu_backend.engine.batching.drafts import Drafts, cut_back, drop_drafts
from wgpu_backend.engine.batching.pace import Groups, Pace
from wgpu_backend.engine.batching.step import Planned, SteadyShapes, Step, submit
from wgpu_backend.engine.runner import Runner
from wgpu_backend.engine.towers import WHOLE_SECONDS
from wgpu_backend.errors import BackendError, CacheFull, DeviceLost
from wgpu_backend.nn.batch import BatchShape

# Steps of one submit: with two submits in flight, an end is seen at most 3 steps late.
TOGETHER = 2
# Of a step: the time of a tower's piece between two steps of others, which then come after one and
# a half steps. With less the first token of the picture's own answer would be much later.
SHARE = 0.5


class Prefixes(Protocol):
    """The interface of the owner of a loop's sequences, which keeps their prefixes."""

    def begin(self, tokens: Sequence[int], *, reuse: bool = True) -> tuple[int, int]:
        """Begin a sequence; return its number and its cached positions."""
        ...

    def note(self, sequence: int, computed: int) -> None:
        """Set the number of a sequence's tokens that are in the cache or in flight."""
        ...

    def end(self, sequence: int, computed: int) -> None:
        """Keep the first `computed` tokens of a sequence, which is no longer used."""
        ...

    def forget(self, sequence: int) -> None:
        """Drop a sequence."""
        ...

    def hide(self, sequence: int) -> None:
        """Keep no prefix of a sequence, because its cache no longer matches its tokens."""
        ...


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """The options of a loop.

    Parameters
    ----------
    slots : int
        Choices that run at once.
    first_slot : int
        Number of the first slot, among all that use the runner.
    budget : int
        Most tokens of a step.
    judged : int
        Most tokens of a step with logits of each token.
    ahead : int
        Steps in flight at most; 1 reads each before the next.
    together : int
        Most steps of one submit, of a choice alone whose steps are short. Two submits may be in
        flight even if these are more than `ahead` steps.
    shapes : SteadyShapes or None
        Fixed shapes of all passes; None if shapes depend on the batch.
    alone : int
        Most tokens of a step while one choice has a slot; 0 for `budget`.
    groups : int
        Most groups that several choices are divided into, with a step of each in flight: as many
        as processors that share the layers.
    """

    slots: int
    first_slot: int
    budget: int
    judged: int
    ahead: int
    together: int = 1
    shapes: SteadyShapes | None = None
    alone: int = 0
    groups: int = 1


class TokenLoop:
    """A loop that plans, submits and reads passes over the choices in its slots.

    Parameters
    ----------
    prefixes : Prefixes
        Owner of the sequences.
    make_room : callable
        Called if the cache is full; returns False if nothing could be freed, or raises CacheFull
        with the reason.
    drafts : Drafts or None
        Source of draft tokens; None for no speculative decoding.
    """

    def __init__(
        self,
        runner: Runner,
        constrained: Constrained,
        model: ModelInfo,
        prefixes: Prefixes,
        make_room: Callable[[], bool],
        options: LoopOptions,
        drafts: Drafts | None = None,
    ) -> None:
        self._runner = runner
        self._constrained = constrained
        self._info = model
        self._sequences = prefixes
        self._make_room = make_room
        self._options = options
        self._shapes = options.shapes
        self._drafts = drafts or Drafts()
        self._encodes = runner.model.prompt_encoder() is not None
        self._seats: list[Completion | None] = [None] * options.slots
        self._in_flight: deque[Step] = deque()
        # For each slot, the number of the plan that had its choice.
        self._served = [0] * options.slots
        self._plans = 0
        self._groups = Groups(options.groups)
        self._pace = Pace(options.together if options.ahead > 1 else 1)
        # The error of a submit, until the passes before it were read.
        self._failure: BackendError | None = None
        self.busy = 0

    def begin(self, completion: Completion) -> tuple[int, int] | None:
        """Begin the sequence of a choice.

        Returns
        -------
        sequence, reused : int
            Number of the sequence, and its cached positions. None if there is no room yet for what
            an encoder read, or if there never will be: then the choice has failed.
        """
        ticket, judges = completion.ticket, completion.judges_prompt
        completion.tokens[:] = self._runner.begins(ticket.tokens)
        # Cached prefixes were computed with the scales in use.
        scaled = ticket.scales is not None
        reuse = not (judges or scaled)
        sequence, reused = self._sequences.begin(completion.tokens, reuse=reuse)
        if scaled or (judges and self._shapes is not None):
            # Its passes have another shape than prompts', so its last bits may differ.
            self._sequences.hide(sequence)
        if self._encodes and not self._encode(sequence, completion):
            return None
        return sequence, reused

    def seat(self, slot: int, completion: Completion, sequence: int, reused: int) -> None:
        """Give a choice a slot."""
        # Before `seat`, so that the choice fails with the others if that raises.
        self._seats[slot] = completion
        completion.seat(self._options.first_slot + slot, sequence, reused)

    def _encode(self, sequence: int, completion: Completion) -> bool:
        """Run the encoder on a prompt; return False if there is no room yet."""
        while True:
            try:
                self._runner.read(sequence, completion.ticket.tokens)
                return True
            except CacheFull as error:
                if self._make_room():
                    continue
                self._sequences.forget(sequence)
                if not self._running():
                    self._fail(completion, error)
                return False

    def step(self) -> None:
        """Submit the next passes, or read the oldest one if enough are in flight."""
        self._step(self._options.ahead)

    @property
    def is_encoding(self) -> bool:
        """Whether a running choice waits for pieces of a tower."""
        return any(self._next_to_encode(each) is not None for each in self._running())

    def stop(self) -> None:
        """Drop the passes in flight, and free the slots; what was read stays in the cache."""
        self._in_flight.clear()
        for each in self._running():
            each.outcome = each.outcome or "cancelled"
        self._release()

    def _read_all(self) -> None:
        while self._in_flight:
            self._read(self._in_flight.popleft())

    def _step(self, ahead: int) -> None:
        # The tokens before a failure were given first.
        if self._failure is not None and not self._in_flight:
            failure, self._failure = self._failure, None
            raise failure
        # Of several choices one may end at any step, so their steps are submitted one by one.
        running = len(self._running())
        together = 1 if running > 1 else self._pace.together
        # Two submits: one runs on the device while the host reads the other.
        most = ahead if together == 1 else max(ahead, 2 * together)
        groups = self._groups.choose(running) if ahead else 1
        if groups > 1:
            most = groups
        elif ahead and any(each.pending_prompt for each in self._running()):
            # Parts of a prompt need nothing that the host reads.
            most = max(most, self._options.groups)
        planned: Planned = ()
        steps: list[Step] = []
        if not self._in_flight or len(self._in_flight) + together <= most:
            if not self._in_flight:
                self._pace.skip()
            self._encode_some()
            planned = () if self._failure else self._plan(groups)
            steps = self._submit(planned, together)
            # No other request waits for a session: the parts of its prompt follow each other
            # without a pause, and only the last one is read.
            self._in_flight += [
                step
                for step in steps
                if step.is_wanted or not all(each.ticket.stepwise for each, _ in planned)
            ]
        # A long pass is read before the next is planned, so that new requests join that one.
        if len(self._seats) > 1 and sum(count for _, count in planned) > len(self._seats):
            # Each processor has one meanwhile.
            while len(self._in_flight) >= self._options.groups:
                self._read(self._in_flight.popleft())
            self._groups.skip()
        elif self._in_flight and (not steps or len(self._in_flight) + together > most):
            self._read(self._in_flight.popleft())
        self._release()

    def _encode_some(self) -> None:
        """Let the tower compute a piece of a picture or sound that a choice needs next.

        While others need the device the piece takes about a share of a step, so that each of their
        steps comes at most one such piece later.
        """
        each = next((e for e in self._running() if self._next_to_encode(e) is not None), None)
        towers = self._info.towers
        if each is None or towers is None or each.inserted is None:
            return
        shared = any(o is not each and o.needs_device for o in self._running())
        if shared:
            # Their tokens come before the piece, and its time is measured alone.
            self._read_all()
        index = self._next_to_encode(each)
        if index is None:
            return
        seconds = SHARE * self._pace.step if shared else WHOLE_SECONDS
        try:
            towers.advance(each.inserted, index, seconds, together=1 if shared else 2)
        except DeviceLost:
            raise
        except BackendError as error:
            self._fail(each, error)
        self._pace.skip()

    @staticmethod
    def _next_to_encode(completion: Completion) -> int | None:
        """Return the picture or sound that a choice needs next; None if it can go on without."""
        inserted = completion.inserted
        if inserted is None or completion.finished or completion.away:
            return None
        return inserted.next(completion.sent)

    # Slots.

    def _running(self) -> list[Completion]:
        return [each for each in self._seats if each is not None]

    def _open(self) -> list[Completion]:
        """Return the running choices, which fail if another choice of their request fails."""
        return self._running()

    def _release(self) -> list[Completion]:
        """Free the slots and cache of choices that have ended, and return these choices."""
        gone: list[Completion] = []
        for slot, each in enumerate(self._seats):
            if each is not None and each.finished:
                self._seats[slot] = None
                if each.inserted is not None and self._info.towers is not None:
                    self._info.towers.drop(each.inserted)
                computed = each.confirmed if each.ticket.stepwise else self._shareable(each)
                self._sequences.end(each.sequence, computed)
                gone.append(each)
        if gone:
            self._failure = None
            self._resume()
        return gone

    def _resume(self) -> None:
        """Resume the paused choice that was submitted first."""
        paused = [each for each in self._running() if each.paused]
        if paused:
            min(paused, key=lambda each: each.ticket.id).paused = False

    # Steps.

    def _plan(self, groups: int = 1) -> Planned:
        """Plan the next pass: the choices and their numbers of tokens.

        Parameters
        ----------
        groups : int
            Groups of choices, of which the pass has one.
        """
        for each in self._running():
            self._bring_back(each)
            full = len(each.tokens) > self._info.num_ctx
            if full and each.saved is None and not each.ahead and not each.finished:
                self._make_place(each)
        # Choices may just have ended; their room is free for others.
        self._release()
        running = self._running()
        seated = self._take_turns(groups)
        pending = self._judging(seated, [self._pending(each) for each in seated])
        if self._shapes is None:
            most = self._options.budget
            if len(running) == 1:
                most = min(self._options.alone or most, self._runner.portion(pending[0]))
            shares = step_shares(pending, most)
        else:
            prompts = [min(p, e.pending_prompt) for p, e in zip(pending, seated, strict=True)]
            shares = steady_shares(prompts, pending, self._options.budget)
        planned = self._whole_runs(seated, shares)
        if not planned and not self._in_flight and any(each.paused for each in running):
            self._resume()
            return self._plan(groups)
        self._guess(planned)
        return planned

    def _take_turns(self, groups: int) -> Sequence[Completion]:
        """Return the choices that the next pass may have: those of one group.

        A group is what happens to be ready at once, at most its share of all: choices whose tokens
        are all known, those first that have waited longest. So groups stay of one size when
        choices come and end. A choice that runs alone goes on from tokens in flight.
        """
        running = self._running()
        if groups == 1 or len(running) == 1:
            return running
        wanting = [slot for slot, each in enumerate(self._seats) if each and each.needs_device]
        ready = [s for s in wanting if (e := self._seats[s]) and not e.ahead and self._pending(e)]
        ready.sort(key=lambda slot: self._served[slot])
        turn = sorted(ready[: -(-len(wanting) // groups)])
        self._plans += 1
        for slot in turn:
            self._served[slot] = self._plans
        return [each for slot in turn if (each := self._seats[slot])]

    def _whole_runs(self, seated: Sequence[Completion], shares: Sequence[int]) -> Planned:
        """Return the shares, changed so that the pass cuts no run with bidirectional attention."""
        planned: list[tuple[Completion, int]] = []
        # Only a pass of fixed shape has no room for more.
        left = math.inf if self._shapes is None else self._options.budget
        for each, share in zip(seated, shares, strict=True):
            count, inserted = int(min(share, left)), each.inserted
            if count and inserted is not None and not each.ahead:
                count = inserted.whole(each.sent, count)
            if 0 < count <= left:
                planned.append((each, count))
                left -= count
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
        most = max(1, self._options.judged // sum(judged))
        others = self._shapes is None
        return [
            min(count, most) if judges else count * others
            for judges, count in zip(judged, pending, strict=True)
        ]

    def _guess(self, planned: Planned) -> None:
        """Add draft tokens to answers, if the pass has room for them."""
        if self._shapes is None or not self._reads_prompts(planned):
            columns = self._options.budget if self._shapes is None else self._shapes.answers.tokens
            self._drafts.guess(planned, columns)

    def _pending(self, completion: Completion) -> int:
        """Return the number of tokens that a choice could compute now, within its context."""
        return max(0, min(completion.pending, self._info.num_ctx - completion.sent))

    def _make_place(self, completion: Completion) -> None:
        """Shift the context by dropping the older half after the kept tokens, or end the choice."""
        stops = completion.request.when_full == "stop" or completion.inserted is not None
        if stops or self._encodes:
            completion.end("length", context_full=True)
            return None
        self._sequences.hide(completion.sequence)
        while True:
            try:
                return self._shift(completion)
            except CacheFull as error:
                if self._make_room():
                    continue
                self._preempt((), error)
                if completion.paused or completion.finished:
                    return None

    def _shift(self, completion: Completion) -> None:
        """Drop positions and move those after them; raises CacheFull without side effects."""
        keep, end = completion.going
        cache, sequence = self._runner.cache, completion.sequence
        if self._moves and cache.can_shift(sequence, keep, end):
            cache.shift(sequence, keep, end)
        else:
            # The rest is computed again.
            cache.remove(sequence, keep)
        completion.drop(keep, end, cache.length(sequence))
        self._drafts.forget(completion)

    def _submit(self, planned: Planned, together: int) -> list[Step]:
        """Submit passes; if the cache is full, make room, then pause choices.

        A choice alone gets the tokens of the passes in flight before an error. An error of several
        is raised at once, so that no later request fails with them.
        """
        runner, longest, alone = self._runner, self._options.together, len(self._seats) == 1
        while planned:
            # Only a choice alone has several steps.
            count = 1 if together == 1 else max(1, min(together, planned[0][0].repeatable))
            shape = self._choose_shape(planned)
            try:
                steps = submit(runner, self._constrained, planned, shape, count, longest)
            except CacheFull as full:
                error = full
                try:
                    if drop_drafts(planned) or self._make_room():
                        continue
                except CacheFull as reason:
                    error = reason
                if alone and self._in_flight:
                    return []
                planned = self._preempt(planned, error)
            except BackendError as error:
                if not (alone and self._in_flight):
                    raise
                # Nothing can follow: the sampler has gone ahead.
                self._failure = error
                return []
            else:
                for each, _ in planned:
                    self._sequences.note(each.sequence, self._shareable(each))
                self.busy += len(planned) * len(steps)
                return steps
        return []

    def _choose_shape(self, planned: Planned) -> BatchShape | None:
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

    def _preempt(self, planned: Planned, error: CacheFull) -> Planned:
        """Pause the choice that was submitted last, to free its room."""
        holding = [each for each in self._running() if each.sent or not each.paused]
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
        if self._encodes or (moves and completion.sent):
            completion.saved = cache.save(sequence)
            cache.remove(sequence)
        else:
            completion.sent = cache.remove(sequence)
        self._sequences.hide(sequence)

    def _bring_back(self, completion: Completion) -> None:
        """Restore the saved cache of a resumed choice, or let it wait for more room."""
        while completion.saved is not None and not completion.paused and not completion.finished:
            try:
                self._runner.cache.restore(completion.sequence, completion.saved)
                completion.saved = None
            except CacheFull as error:
                if self._make_room():
                    continue
                others = [each for each in self._running() if each is not completion]
                if not all(each.away for each in others):
                    completion.paused = True
                else:
                    self._fail(completion, error)

    @property
    def _moves(self) -> bool:
        """Return whether shifts move cached positions; else they are computed again."""
        return self._shapes is None and not self._encodes

    def _read(self, step: Step) -> None:
        for each, error in step.read():
            self._fail(each, error)
        if self._drafts.most:
            cut_back(self._runner.cache, step.chosen)
        if self._in_flight:
            # The pass after it may have waited for these tokens.
            self._in_flight[0].late.decide(self._constrained)
        self._pace.count()
        running = len(self._running())
        if running > 1 and step.is_wanted:
            self._groups.count(running, len(step.chosen), time.perf_counter())

    def _fail(self, completion: Completion, error: Exception) -> None:
        """Fail the request of a choice with an error."""
        ticket = completion.ticket
        failed = [each for each in self._open() if each.ticket is ticket and not each.finished]
        for each in failed:
            each.outcome = "failed"
        ticket.free_places(len(failed))
        ticket.mailbox.fail(error)


def fair_shares(wanted: Sequence[int], budget: int) -> list[int]:
    """Divide a budget equally; requests get what others do not need.

    So a short prompt is read in its first step, however long the other prompts are. If there is
    less than a token for each, the first requests get one.

    Parameters
    ----------
    wanted : sequence of int
        Tokens that each request could take, in order of arrival.

    Returns
    -------
    list of int
        Tokens of each request, at most `wanted`; their sum is at most the budget.
    """
    given = [0] * len(wanted)
    # Smallest demand first; the last of equal ones first, so that the remainder goes to the first.
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], -i))
    for place, i in enumerate(order):
        given[i] = min(wanted[i], budget // (len(order) - place))
        budget -= given[i]
    return given


def steady_shares(prompts: Sequence[int], answers: Sequence[int], budget: int) -> list[int]:
    """Return each request's tokens in the next step, which has only prompts or only answers.

    A token's result then does not depend on the other requests in the batch: prompts are always
    read in prompt passes, generated tokens always in decode steps. Prompts come first, since their
    requests cannot generate tokens before.

    Parameters
    ----------
    prompts, answers : sequence of int
        Pending tokens of each request that belong to a prompt, and to an answer.
    budget : int
        Most tokens of a prompt pass.
    """
    if any(prompts):
        return fair_shares(prompts, budget)
    return [min(count, 1) for count in answers]


def step_shares(pending: Sequence[int], budget: int) -> list[int]:
    """Divide a step between requests that generate tokens and requests that read prompts.

    A generating request has one pending token and always gets it, so it never waits for prompts.
    Prompts share the rest. If some prompts end in this step, longer ones get less and the step is
    half as long, so that the first tokens of the former arrive sooner.

    Parameters
    ----------
    pending : sequence of int
        Pending tokens of each request; 0 for one that must wait.
    budget : int
        Most tokens of a step.
    """
    if len(pending) == 1:
        return [min(pending[0], budget)]
    making = [count if count == 1 else 0 for count in pending]
    given = fair_shares(making, budget)
    reading = [count if count > 1 else 0 for count in pending]
    for i, count in enumerate(_brief_shares(reading, budget - sum(given), budget // 2)):
        given[i] += count
    return given


def _brief_shares(reading: Sequence[int], budget: int, spared: int) -> list[int]:
    """Divide a budget equally, or `spared` less of it if some prompts end in this step."""
    given = fair_shares(reading, budget)
    ending = [count if count == given[i] else 0 for i, count in enumerate(reading)]
    longer = [0 if count else reading[i] for i, count in enumerate(ending)]
    left = budget - sum(ending) - spared
    if not any(ending) or left < 1:
        return given
    return [a + b for a, b in zip(ending, fair_shares(longer, left), strict=True)]
