"""One pass for many requests: what it is given, and what is read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wgpu_backend.batch import Batch, BatchShape, Work
from wgpu_backend.dtypes import I32
from wgpu_backend.engine.runner import Head, Runner, TimedResult, bucket
from wgpu_backend.engine.sampling import DRAWS, HISTORY, NEUTRAL, NOWHERE, SAMPLING, build
from wgpu_backend.errors import BackendError
from wgpu_backend.ml.executor import Array
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.model import Model
from wgpu_backend.sample import Plan
from wgpu_backend.serving.completion import Completion

PICKED = "picked_rows"
GREEDY = Plan("greedy", 1, 0)
Planned = Sequence[tuple[Completion, int]]


@dataclass(frozen=True, slots=True)
class NextTokens:
    """Makes a token for each row, and gives the logits of some.

    Equal for equal plans, so that recorded graphs serve every batch with such options.

    Parameters
    ----------
    plan : Plan
        That covers all rows whose token is chosen on the device.
    picked : int
        Rows of logits that are read back; 0 for none.
    model : Model
    token_slots : (slots,), i32
        State that chosen tokens are put into.
    """

    plan: Plan
    picked: int
    model: Model
    token_slots: Tensor = field(compare=False)

    def __call__(self, batch: Batch, hidden: Tensor) -> list[Tensor]:
        """Slots with the chosen tokens, and the picked logits."""
        logits = self.model.logits(hidden)
        chosen = build(batch.context, logits, self.plan, self.token_slots)
        if not self.picked:
            return [chosen]
        return [chosen, logits.rows(batch.context.input(PICKED, (self.picked,), I32))]


@dataclass(frozen=True, slots=True)
class Step:
    """A pass that is under way.

    Parameters
    ----------
    result : TimedResult
    chosen : sequence of Completion
        Those that get a token of it.
    picked : sequence of Completion
        Those among them whose logits are read back, in the order of their rows.
    """

    result: TimedResult
    chosen: Sequence[Completion]
    picked: Sequence[Completion]

    def read(self) -> list[tuple[Completion, BackendError]]:
        """Wait, and give each completion its token; those whose logits are wrong come back.

        Raises
        ------
        BackendError
            The pass failed.
        """
        arrays = self.result.wait()
        logits = {id(each): arrays[1][row] for row, each in enumerate(self.picked)}
        failed: list[tuple[Completion, BackendError]] = []
        for each in self.chosen:
            try:
                each.take(arrays[0], logits.get(id(each)))
            except BackendError as error:
                failed.append((each, error))
        return failed


def submit(runner: Runner, planned: Planned, shape: BatchShape | None = None) -> Step:
    """Submit a pass over so many tokens of each; does not wait.

    Parameters
    ----------
    runner : Runner
    planned : sequence of (Completion, int)
    shape : BatchShape or None
        See `Runner.run`.

    Raises
    ------
    CacheFull
        There is no room for all of it; the cache is as it was.
    """
    works = [_work(each, count) for each, count in planned]
    chosen = [(row, each) for row, (each, count) in enumerate(planned) if _ends(each, count)]
    picked = [(row, each) for row, each in chosen if each.wants_logits]
    on_device = [(row, each) for row, each in chosen if not each.sampler.on_host]
    plan = Plan.joined([GREEDY, *(each.sampler.plan for _, each in on_device)])
    shape = shape or runner.shape_of(works)
    extra = _inputs(on_device, plan, shape.outputs)
    if picked:
        rows = np.zeros(bucket(len(picked)), np.int32)
        rows[: len(picked)] = [row for row, _ in picked]
        extra[PICKED] = rows
    head = NextTokens(plan, bucket(len(picked)) if picked else 0, runner.model, runner.token_slots)
    try:
        result = runner.run(works, Head("next tokens", head), extra, shape)
    finally:  # after a failure, a window or a state may have to go on from before
        for each, _ in planned:
            each.sent = runner.cache.length(each.sequence)
    for _, each in chosen:
        each.sampler.advance()
        each.ahead += 1
    return Step(result, [each for _, each in chosen], [each for _, each in picked])


def _work(completion: Completion, count: int) -> Work:
    """Part of a pass; all give a row of results, so that graphs differ in fewer ways."""
    tokens = completion.part(count)
    return Work(completion.sequence, tokens, (len(tokens) - 1,))


def _ends(completion: Completion, count: int) -> bool:
    """Whether a token follows what the pass computes."""
    return bool(completion.ahead) or completion.sent + count == len(completion.tokens)


def _inputs(rows: Sequence[tuple[int, Completion]], plan: Plan, outputs: int) -> dict[str, Array]:
    """Values of the inputs of the choice; rows without one choose for nobody."""
    sampling = np.tile(NEUTRAL, (outputs, 1))
    draws = np.tile(np.array([0, NOWHERE], np.uint32), (outputs, 1))
    history = np.full((outputs, plan.history), -1, np.int32)
    for row, completion in rows:
        given = completion.sampler.inputs()
        sampling[row], draws[row] = given[SAMPLING][0], given[DRAWS][0]
        if HISTORY in given:
            recent = given[HISTORY][0]
            history[row, : len(recent)] = recent
    values: dict[str, Array] = {SAMPLING: sampling, DRAWS: draws}
    return {**values, HISTORY: history} if plan.history else values
