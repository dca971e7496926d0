"""A pass over many requests: its inputs, its submission and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.batching.constrained import NOWHERE as NO_ROW
from wgpu_backend.engine.batching.constrained import Constrained, Masking, mask_input
from wgpu_backend.engine.media import NO_ROWS, RowKinds
from wgpu_backend.engine.runner import NOTHING, SHORTEST, Head, Runner, TimedResult, bucket
from wgpu_backend.engine.step_sampler import (
    DRAWS,
    HISTORY,
    KEPT,
    MASK,
    NEUTRAL,
    NOWHERE,
    PICKED,
    SAMPLING,
    NextTokens,
)
from wgpu_backend.errors import BackendError, CacheFull
from wgpu_backend.ml.executor import Array
from wgpu_backend.nn.batch import BatchShape, Work
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.ops.sampling.host import Plan
from wgpu_backend.ops.sampling.host.plan import HOST
from wgpu_backend.text.grammar.masks import Mask

Planned = Sequence[tuple[Completion, int]]
Judged = tuple[Completion, int, slice]


@dataclass(frozen=True, slots=True)
class Step:
    """A pass in flight.

    Parameters
    ----------
    chosen : sequence of Completion
        Choices that get a token from the pass.
    picked : mapping of int to slice
        Rows in the returned logits, by index in `chosen`.
    late : Late
        The choice of tokens under grammars.
    readers : sequence of (Completion, int)
        Choices that want progress events for the part of their prompt that the pass reads, and
        the position after it.
    judged : sequence of (Completion, int, slice)
        Choices that get log probabilities of their prompts, with the position of the first row,
        and the rows in the returned logits.
    """

    result: TimedResult
    chosen: Sequence[Completion]
    picked: Mapping[int, slice]
    late: Late
    readers: Sequence[tuple[Completion, int]] = ()
    judged: Sequence[Judged] = ()

    @property
    def is_wanted(self) -> bool:
        """Return whether a choice needs a result of the pass."""
        return bool(self.chosen or self.readers or self.judged)

    def read(self) -> list[tuple[Completion, BackendError]]:
        """Wait, and give each completion its token; return the completions with invalid logits.

        Raises
        ------
        BackendError
            The pass failed.
        """
        # First, because it ends later: so only one wait sleeps.
        tokens = self.late.wait()
        arrays = self.result.wait()
        for each, position in self.readers:
            each.send_progress(position)
        failed: list[tuple[Completion, BackendError]] = []
        for each, first, rows in self.judged:
            try:
                each.send_prompt_logprobs(first, arrays[-1][rows])
            except BackendError as error:
                failed.append((each, error))
        slots = arrays[0] if tokens is None else tokens
        for place, each in enumerate(self.chosen):
            if id(each) in self.late.dropped:
                continue
            rows = self.picked.get(place)
            try:
                if (wrong := self.late.wrong.get(id(each))) is not None:
                    raise wrong
                each.take(slots, None if rows is None else arrays[-1][rows])
            except BackendError as error:
                failed.append((each, error))
        return failed


@dataclass(slots=True)
class Late:
    """The choice of tokens under grammars, whose logits wait on the device for masks.

    A pass may be submitted before the token that a mask depends on was read. It chooses its tokens
    under guesses of the masks. While the device computes the pass, that token is read and the mask
    made. Where the guess was wrong, the token is chosen again from the kept logits.

    Parameters
    ----------
    rows : sequence of Completion
        Choices by row of the waiting logits.
    masks : dict of int to Masking
        Masks that are being made, by the `id()` of the completion.
    used : mapping of int to Mask
        Masks under which the pass itself chooses tokens, by the `id()` of the completion.
    wrong : dict of int to BackendError
        Errors of masks that could not be made, by the `id()` of the completion.
    dropped : set of int
        Completions, by their `id()`, that need no token of the pass: they have ended, or their
        grammar forced the token.
    result : TimedResult or None
        Result of the choice; None before it is submitted, and without rows.
    """

    rows: Sequence[Completion]
    masks: dict[int, Masking]
    used: Mapping[int, Mask]
    wrong: dict[int, BackendError] = field(default_factory=dict[int, BackendError])
    dropped: set[int] = field(default_factory=set[int])
    result: TimedResult | None = None

    @classmethod
    def begin(
        cls, chosen: Sequence[Completion], rows: Sequence[Completion], constrained: Constrained
    ) -> Late:
        """Begin the masks that depend on known tokens, and guess the masks of this pass's rows.

        Parameters
        ----------
        chosen : sequence of Completion
            Choices that get a token from the pass.
        rows : sequence of Completion
            Those of them whose token the device chooses under a grammar.
        """
        guesses = {id(each): each.newest_mask for each in rows}
        known = [each for each in chosen if each.constrained and not each.ahead]
        masks = {id(each): each.begin_mask(constrained) for each in known}
        for key, masking in masks.items():
            # Made now, the mask costs less than a second submit.
            if key in guesses and masking.is_brief:
                masking.wait()
                guesses[key] = masking.mask
        return cls(rows, masks, {key: mask for key, mask in guesses.items() if mask is not None})

    def decide(self, constrained: Constrained) -> None:
        """Make the masks, and choose again the tokens that the pass chose under other masks.

        Does nothing if that was done.
        """
        if not any(each.is_undecided for each in self.rows):
            return
        for each in self.rows:
            if not each.needs_token:
                self.dropped.add(id(each))
                each.drop_token()
            elif id(each) not in self.masks:
                self.masks[id(each)] = each.begin_mask(constrained)
        found = self.wait_masks()
        wanted = [(row, e) for row, e in enumerate(self.rows) if id(e) not in self.dropped]
        missed = [(row, e) for row, e in wanted if self._is_missed(id(e), found)]
        if missed:
            plan = _merge_plans(list(enumerate(self.rows)))
            given = [(row, _make_inputs(each)) for row, each in missed]
            inputs = choice_inputs(given, plan, bucket(len(self.rows)))
            # Rows without a mask are unmasked, and their tokens are not used.
            masks = [found.get(id(each)) for each in self.rows]
            self.result = constrained.choose(masks, inputs, plan)
        for _, each in wanted:
            each.sampler.advance()
            each.is_undecided = False

    def _is_missed(self, key: int, found: Mapping[int, Mask]) -> bool:
        """Return whether the pass has not chosen a completion's token under its mask."""
        if key not in found:
            return False
        used = self.used.get(key)
        return used is None or not np.array_equal(used, found[key])

    def wait_masks(self) -> dict[int, Mask]:
        """Wait for the masks that were begun, and note the errors of those that failed."""
        found: dict[int, Mask] = {}
        for key, masking in self.masks.items():
            mask = masking.wait()
            if isinstance(mask, BackendError):
                self.wrong[key] = mask
            else:
                found[key] = mask
        return found

    def wait(self) -> Array | None:
        """Wait for the tokens, by slot; None if none were chosen."""
        return None if self.result is None else self.result.wait()[0]


def submit(
    runner: Runner,
    constrained: Constrained,
    planned: Planned,
    shape: BatchShape | None = None,
    count: int = 1,
    together: int = 1,
) -> list[Step]:
    """Submit passes over the planned tokens; waits only for masks of known tokens.

    Parameters
    ----------
    shape : BatchShape or None
        See `Runner.run`.
    count : int
        Passes to submit together, at most `together`: each chooses the token for the next. More
        than one are for answers whose tokens stay on the device.
    together : int
        Passes that the recorded graph has inputs for.

    Returns
    -------
    list of Step
        The passes, oldest first; fewer than `count` if the cache has no room for all.

    Raises
    ------
    CacheFull
        The cache has no room for the first pass; it is unchanged.
    """
    works = [_work(each, tokens) for each, tokens in planned]
    shape = shape or runner.shape_of(works, count)
    rows = _Rows.of(planned, works, constrained)
    late = rows.late
    head = rows.head(runner, constrained, together)
    batch = runner.batched_submit(head, count, shape)
    readers = [each for each, _ in planned if each.request.progress and each.pending_prompt]
    read: list[list[tuple[Completion, int]]] = []
    try:
        while len(read) < count:
            # A later pass continues from the token that the one before leaves on the device.
            if read:
                works = [_work(each, tokens) for each, tokens in planned]
            try:
                batch.add(works, rows.inputs(shape.outputs, constrained.vocabulary))
            except CacheFull:
                if not read:
                    raise
                break
            _count_sent(runner, planned)
            read.append([(each, each.sent) for each in readers])
            if count > 1:
                rows.advance()
        results = batch.submit()
    finally:
        # A failure may leave a window or a state at an earlier position.
        _count_sent(runner, planned)
        late.wait_masks()
    # Only now: after a failed submit the choices try the same token again.
    if count == 1:
        rows.advance()
    # Where the token before is in flight, the pass is on its way before the masks can be made.
    if all(each.ahead == 1 for each in late.rows):
        late.decide(constrained)
    for each, first, here in rows.judged:
        each.judged = first + here.stop - here.start
    chosen = [each for _, each in rows.chosen]
    return [
        Step(result, chosen, rows.places, late, positions, rows.judged)
        for result, positions in zip(results, read, strict=True)
    ]


def _count_sent(runner: Runner, planned: Planned) -> None:
    for each, _ in planned:
        each.sent = runner.cache.length(each.sequence)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of results of a pass, and the use of each.

    Parameters
    ----------
    chosen : list of (int, Completion)
        Choices that get a token, and the first of their rows.
    own : list of (int, Completion)
        Those of them whose token the pass itself chooses, if their guessed masks are right.
    kept : list of int
        Rows whose logits wait for masks.
    late : Late
        The choice of tokens whose masks were not guessed rightly.
    picked : list of int
        Rows whose logits are read back.
    places : mapping of int to slice
        Rows in the returned logits, by index in `chosen`.
    judged : list of (Completion, int, slice)
        See `Step`.
    plan : Plan
        Sampling plan that covers `own`.
    """

    chosen: list[tuple[int, Completion]]
    own: list[tuple[int, Completion]]
    kept: list[int]
    late: Late
    picked: list[int]
    places: Mapping[int, slice]
    judged: list[Judged]
    plan: Plan

    @classmethod
    def of(cls, planned: Planned, works: Sequence[Work], constrained: Constrained) -> _Rows:
        """Assign the rows of a pass, and begin the masks that depend on known tokens."""
        ends = list(accumulate(len(work.outputs) for work in works))
        chosen = [
            (end - 1 - len(each.guessed), each)
            for end, (each, count) in zip(ends, planned, strict=True)
            if _ends(each, count)
        ]
        on_device = [(row, each) for row, each in chosen if not each.sampler.on_host]
        waiting = [(row, each) for row, each in on_device if each.constrained]
        late = Late.begin([each for _, each in chosen], [each for _, each in waiting], constrained)
        own = [(r, each) for r, each in on_device if not each.constrained or id(each) in late.used]
        picked, places = _pick_rows(chosen)
        judged = _pick_judged(planned, ends, picked)
        kept = [row for row, _ in waiting]
        return cls(chosen, own, kept, late, picked, places, judged, _merge_plans(own))

    def head(self, runner: Runner, constrained: Constrained, together: int) -> Head:
        """Return the head of the pass."""
        # A part of a prompt that is not its end needs no logits, which saves the largest matrix.
        if not self.chosen and not self.picked:
            return NOTHING
        kept = constrained.logits if self.kept else None
        count = bucket(len(self.picked)) if self.picked else 0
        build = NextTokens(
            self.plan,
            count,
            runner.model,
            runner.token_slots,
            kept,
            keeps=bool(self.kept),
            masks=bool(self.late.used),
        )
        return Head("next tokens", build, together)

    def inputs(self, outputs: int, vocabulary: int) -> dict[str, Array]:
        """Return the inputs of the head, for `outputs` rows."""
        extra: dict[str, Array] = {}
        if self.own:
            given = [(row, _make_inputs(each)) for row, each in self.own]
            extra = choice_inputs(given, self.plan, outputs)
        if self.picked and outputs > 1:
            extra[PICKED] = np.zeros(bucket(len(self.picked)), np.int32)
            extra[PICKED][: len(self.picked)] = self.picked
        if self.kept:
            extra[KEPT] = np.full(outputs, NO_ROW, np.int32)
            extra[KEPT][self.kept] = range(len(self.kept))
        if self.late.used:
            masks: list[Mask | None] = [None] * outputs
            for row, each in zip(self.kept, self.late.rows, strict=True):
                masks[row] = self.late.used.get(id(each))
            extra[MASK] = mask_input(masks, outputs, vocabulary)
        return extra

    def advance(self) -> None:
        """Count the tokens of the pass as in flight."""
        late = {id(each) for each in self.late.rows}
        for _, each in self.chosen:
            if id(each) in late:
                each.is_undecided = True
            elif not each.guessed:
                each.sampler.advance()
            each.ahead += 1


def _merge_plans(rows: Sequence[tuple[int, Completion]]) -> Plan:
    """Return a plan for rows whose token is chosen on the device; the host's if there are none."""
    return Plan.merge([each.sampler.plan for _, each in rows]) if rows else HOST


def make_work(sequence: int, tokens: Sequence[int], guessed: int = 0) -> Work:
    """Make a sequence's part of a pass, always with at least one row of results.

    Parameters
    ----------
    guessed : int
        Number of draft tokens at the end: each gives a row, as does the token before them.
    """
    return Work(sequence, tokens, range(len(tokens) - 1 - guessed, len(tokens)))


def _work(completion: Completion, count: int) -> Work:
    """Make a choice's part of a pass; for `prompt_logprobs` every prompt token gives a row."""
    tokens, guessed = completion.part(count), len(completion.guessed)
    if completion.judges_prompt:
        return Work(completion.sequence, tokens, range(len(tokens)))
    work = make_work(completion.sequence, tokens, guessed)
    inserted = completion.inserted
    return work if inserted is None else inserted.work(work, completion.sent)


def _pick_judged(planned: Planned, ends: Sequence[int], picked: list[int]) -> list[Judged]:
    """Add the rows for `prompt_logprobs` to those that are read back."""
    found: list[Judged] = []
    for end, (each, count) in zip(ends, planned, strict=True):
        positions = each.judging(count)
        if positions:
            begin, row = len(picked), end - count - each.sent
            picked += range(row + positions.start, row + positions.stop)
            found.append((each, positions.start, slice(begin, len(picked))))
    return found


def _make_inputs(completion: Completion) -> Mapping[str, Array]:
    """Return the sampling inputs for a choice's next tokens."""
    sampler, guessed = completion.sampler, completion.guessed
    return sampler.draft_inputs(guessed) if guessed else sampler.inputs()


def _pick_rows(chosen: Sequence[tuple[int, Completion]]) -> tuple[list[int], dict[int, slice]]:
    """Return the rows whose logits are read back, and each choice's range among them."""
    rows: list[int] = []
    places: dict[int, slice] = {}
    for place, (row, each) in enumerate(chosen):
        if each.wants_logits:
            begin = len(rows)
            rows += range(row, row + 1 + len(each.guessed))
            places[place] = slice(begin, len(rows))
    return rows, places


def _ends(completion: Completion, count: int) -> bool:
    """Return whether the pass gives a choice its next token."""
    return bool(completion.ahead) or completion.sent + count == len(completion.tokens)


def choice_inputs(
    rows: Sequence[tuple[int, Mapping[str, Array]]], plan: Plan, outputs: int
) -> dict[str, Array]:
    """Combine the sampling inputs of rows; unused rows get neutral values.

    Parameters
    ----------
    rows : sequence of (int, mapping of str to ndarray)
        The first row of each sequence, and its sampler's inputs for that row and later ones.
    outputs : int
        Number of all rows.
    """
    # The arrays of a sequence alone are those of the pass.
    if outputs == len(rows) == 1:
        return dict(rows[0][1])
    sampling = np.tile(NEUTRAL, (outputs, 1))
    draws = np.tile(np.array([0, NOWHERE], np.uint32), (outputs, 1))
    history = np.full((outputs, plan.history), -1, np.int32)
    for first, given in rows:
        here = slice(first, first + len(given[DRAWS]))
        sampling[here], draws[here] = given[SAMPLING], given[DRAWS]
        if HISTORY in given:
            history[here, : given[HISTORY].shape[1]] = given[HISTORY]
    values: dict[str, Array] = {SAMPLING: sampling, DRAWS: draws}
    return {**values, HISTORY: history} if plan.history else values


@dataclass(frozen=True, slots=True)
class SteadyShapes:
    """The fixed shapes of passes, so that a token's bits do not depend on the rest of the batch.

    Parameters
    ----------
    prompts, answers : BatchShape
        Shape of all prompt passes, and of all decode steps.
    judged : BatchShape
        Shape of prompt passes with logits of every token, whose cache is not shared.
    """

    prompts: BatchShape
    answers: BatchShape
    judged: BatchShape

    @classmethod
    def of(
        cls,
        cache: Cache,
        num_ctx: int,
        budget: int,
        slots: int,
        guessed: int,
        judged: int,
        rows: RowKinds = NO_ROWS,
    ) -> SteadyShapes:
        """Compute the shapes for a number of slots.

        Parameters
        ----------
        num_ctx : int
            Positions in a context.
        budget : int
            Most tokens of a prompt pass.
        guessed : int
            Most draft tokens of each answer.
        judged : int
            Most tokens of a pass with logits of every token.
        rows : RowKinds
            What the model's towers may put into a prompt. Every pass can take it, since the graph
            of text alone may round differently.
        """
        room = bucket(num_ctx, SHORTEST)
        tokens, choices = bucket(budget), bucket(slots)
        outputs = 2 * choices if tokens == choices > 1 else choices
        columns, whole = bucket(slots * (1 + guessed)), bucket(judged)

        def shape(tokens: int, outputs: int) -> BatchShape:
            return BatchShape(tokens, outputs, choices, cache.reach(room, tokens), *rows)

        return cls(shape(tokens, outputs), shape(columns, columns), shape(whole, whole))
