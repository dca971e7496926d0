"""A pass over many requests: its inputs, its submission and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wgpu_backend.dtypes import I32
from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.batching.constrained import NOWHERE as NO_ROW
from wgpu_backend.engine.batching.constrained import Constrained
from wgpu_backend.engine.runner import SHORTEST, Head, Runner, TimedResult, bucket
from wgpu_backend.engine.sampling import DRAWS, HISTORY, NEUTRAL, NOWHERE, SAMPLING, build
from wgpu_backend.errors import BackendError
from wgpu_backend.ml.executor import Array
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch, BatchShape, Work
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.model import Model
from wgpu_backend.ops.sampling.host import Plan
from wgpu_backend.text.grammar.masks import Mask

PICKED, KEPT = "picked_rows", "kept_rows"
GREEDY = Plan("greedy", 1, 0)
Planned = Sequence[tuple[Completion, int]]
Judged = tuple[Completion, int, slice]


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The head of a batched step: a token for each row, and the logits of some rows.

    Heads of equal plans are equal, so that all batches with such options share recorded graphs.

    Parameters
    ----------
    plan : Plan
        Sampling plan that covers all rows whose token is chosen on the device.
    picked : int
        Number of rows of logits to read back; 0 for none.
    token_slots : (slots,), i32
        State that receives the chosen tokens.
    kept : (rows, vocabulary), f32, or None
        State for logits that wait for masks.
    keeps : bool
        Whether `kept` is set; part of the comparison in its place.
    """

    plan: Plan
    picked: int
    model: Model
    token_slots: Tensor = field(compare=False)
    kept: Tensor | None = field(default=None, compare=False)
    keeps: bool = False

    def __call__(self, batch: Batch, hidden: Tensor) -> list[Tensor]:
        """Build the choice of tokens and the selection of logits."""
        logits = self.model.logits(hidden)
        chosen = build(batch.context, logits, self.plan, self.token_slots)
        made = [chosen]
        if self.picked:
            made.append(logits.rows(batch.context.input(PICKED, (self.picked,), I32)))
        if self.kept is not None:
            places = batch.context.input(KEPT, (logits.dim(0),), I32)
            # One value of the result is enough to have the write in the graph.
            made.append(self.kept.set_rows(logits, places)[:1, :1])
        return made


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
        The sampling of choices with grammars.
    readers : sequence of (Completion, int)
        Choices whose prompt the pass reads, and the position after it.
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

    def read(self) -> list[tuple[Completion, BackendError]]:
        """Wait, and give each completion its token; return the completions with invalid logits.

        Raises
        ------
        BackendError
            The pass failed.
        """
        arrays = self.result.wait()
        for each, position in self.readers:
            each.tell_read(position)
        failed: list[tuple[Completion, BackendError]] = []
        for each, first, rows in self.judged:
            try:
                each.tell_prompt(first, arrays[1][rows])
            except BackendError as error:
                failed.append((each, error))
        slots = arrays[0] if self.late.result is None else self.late.result.wait()[0]
        for place, each in enumerate(self.chosen):
            rows = self.picked.get(place)
            try:
                if (wrong := self.late.wrong.get(id(each))) is not None:
                    raise wrong
                each.take(slots, None if rows is None else arrays[1][rows])
            except BackendError as error:
                failed.append((each, error))
        return failed


@dataclass(frozen=True, slots=True)
class Late:
    """The sampling of tokens under grammars, in flight.

    Parameters
    ----------
    result : TimedResult or None
        Result of the choice; None if no row has a grammar.
    wrong : mapping of int to BackendError
        Errors of masks that could not be made, by the `id()` of the completion.
    """

    result: TimedResult | None = None
    wrong: Mapping[int, BackendError] = field(default_factory=dict[int, BackendError])


def submit(
    runner: Runner,
    constrained: Constrained,
    planned: Planned,
    shape: BatchShape | None = None,
) -> Step:
    """Submit a pass over the planned tokens; waits only for the masks of grammars.

    Parameters
    ----------
    shape : BatchShape or None
        See `Runner.run`.

    Raises
    ------
    CacheFull
        The cache has no room for the pass; it is unchanged.
    """
    readers = [each for each, _ in planned if each.pending_prompt]
    works = [_work(each, count) for each, count in planned]
    ends = np.cumsum([len(work.outputs) for work in works]).tolist()
    chosen = [
        (end - 1 - len(each.guessed), each)
        for end, (each, count) in zip(ends, planned, strict=True)
        if _ends(each, count)
    ]
    masks = [(each, each.begin_mask(constrained.threads)) for _, each in chosen if each.constrained]
    on_device = [(row, each) for row, each in chosen if not each.sampler.on_host]
    late = [(row, each) for row, each in on_device if each.constrained]
    free = [(row, each) for row, each in on_device if not each.constrained]
    plan = _plan(free)
    shape = shape or runner.shape_of(works)
    given = [(row, _make_inputs(each)) for row, each in free]
    extra = choice_inputs(given, plan, shape.outputs)
    picked, places = _pick_rows(chosen)
    judged = _pick_judged(planned, ends, picked)
    if picked:
        extra[PICKED] = np.zeros(bucket(len(picked)), np.int32)
        extra[PICKED][: len(picked)] = picked
    if late:
        extra[KEPT] = np.full(shape.outputs, NO_ROW, np.int32)
        extra[KEPT][[row for row, _ in late]] = range(len(late))
    kept = constrained.logits if late else None
    count = bucket(len(picked)) if picked else 0
    head = NextTokens(plan, count, runner.model, runner.token_slots, kept, bool(late))
    try:
        result = runner.run(works, Head("next tokens", head), extra, shape)
    finally:  # a failure may leave a window or a state at an earlier position
        for each, _ in planned:
            each.sent = runner.cache.length(each.sequence)
        found = {id(each): masking.wait() for each, masking in masks}
    made = _late([each for _, each in late], found, constrained)
    for _, each in chosen:
        if not each.guessed:
            each.sampler.advance()
        each.ahead += 1
    for each, first, rows in judged:
        each.judged = first + rows.stop - rows.start
    read = [(each, each.sent) for each in readers]
    return Step(result, [each for _, each in chosen], places, made, read, judged)


def _plan(rows: Sequence[tuple[int, Completion]]) -> Plan:
    return Plan.merge([GREEDY, *(each.sampler.plan for _, each in rows)])


def _late(
    rows: Sequence[Completion],
    found: Mapping[int, Mask | BackendError],
    constrained: Constrained,
) -> Late:
    """Submit the sampling of rows with grammars; rows with a failed mask are unmasked."""
    wrong = {key: mask for key, mask in found.items() if isinstance(mask, BackendError)}
    if not rows:
        return Late(None, wrong)
    made = [found[id(each)] for each in rows]
    masks = [None if isinstance(mask, BackendError) else mask for mask in made]
    placed = list(enumerate(rows))
    plan = _plan(placed)
    inputs = choice_inputs(
        [(row, _make_inputs(each)) for row, each in placed], plan, bucket(len(rows))
    )
    return Late(constrained.choose(masks, inputs, plan), wrong)


def work_of(sequence: int, tokens: Sequence[int], guessed: int = 0) -> Work:
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
    return work_of(completion.sequence, tokens, guessed)


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
    return sampler.behind(guessed) if guessed else sampler.inputs()


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
        cls, cache: Cache, num_ctx: int, budget: int, slots: int, guessed: int, judged: int
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
        """
        room = bucket(num_ctx, SHORTEST)
        rows, choices = bucket(budget), bucket(slots)
        outputs = 2 * choices if rows == choices > 1 else choices
        columns, whole = bucket(slots * (1 + guessed)), bucket(judged)
        return cls(
            BatchShape(rows, outputs, choices, cache.reach(room, rows)),
            BatchShape(columns, columns, choices, cache.reach(room, columns)),
            BatchShape(whole, whole, choices, cache.reach(room, whole)),
        )
