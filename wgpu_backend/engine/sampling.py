"""Sampling on the device: the ops a plan asks for, and what they are given each step.

The graph that `build` records serves every token, every seed and every option that its plan
covers; only the arrays of `inputs` differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wgpu_backend.dtypes import F32, I32, U32
from wgpu_backend.errors import BackendError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.sample import Knobs, Plan, Sampler, SamplingOptions, knobs_of

KNOBS, HISTORY, DRAWS = "sampling_knobs", "sampling_history", "sampling_draws"


def build(context: Context, logits: Tensor, plan: Plan) -> Tensor:
    """Add the choice of a token for each row of logits.

    Parameters
    ----------
    context : Context
    logits : (rows, vocab), f32
    plan : Plan
        Not the host's.

    Returns
    -------
    (rows,), i32
        Tokens, for `checked`.

    Raises
    ------
    BackendError
        The plan is to sample on the host.
    """
    if plan.kind == "host":
        raise BackendError(
            "sampling graph: the plan is to sample on the host; read the logits back"
        )
    rows = logits.dim(0)
    knobs = context.input(KNOBS, (rows, len(Knobs._fields)), F32)
    draws = context.input(DRAWS, (rows,), U32)
    if plan.history:
        logits = logits.penalise(context.input(HISTORY, (rows, plan.history), I32), knobs)
    return logits.sample(logits.top_k(k=plan.candidates), knobs, draws)


def inputs(
    samplers: Sequence[Sampler], histories: Sequence[Sequence[int]], plan: Plan, rows: int = 0
) -> dict[str, Array]:
    """Values of the inputs of one step; takes a random number from each sampler.

    Parameters
    ----------
    samplers : sequence of Sampler
        One for each row that counts.
    histories : sequence of sequence of int
        Tokens of each sequence so far, the oldest first.
    plan : Plan
        The one given to `build`; it covers the options of all samplers.
    rows : int
        Rows of the graph where that is more: those behind take their most likely token.

    Returns
    -------
    dict of str to ndarray
    """
    count = max(rows, len(samplers))
    knobs = np.tile(_NEUTRAL, (count, 1))
    draws = np.zeros(count, np.uint32)
    history = np.full((count, plan.history), -1, np.int32)
    for row, (sampler, seen) in enumerate(zip(samplers, histories, strict=True)):
        knobs[row] = sampler.knobs.array()
        draws[row] = sampler.draw()
        recent = sampler.recent(seen)
        history[row, : len(recent)] = recent
    values: dict[str, Array] = {KNOBS: knobs, DRAWS: draws}
    return {**values, HISTORY: history} if plan.history else values


def checked(tokens: Array) -> list[int]:
    """Tokens that the device chose.

    Raises
    ------
    BackendError
        The logits of one were NaN or infinite.
    """
    found = [int(token) for token in tokens]
    if min(found, default=0) < 0:
        raise BackendError(
            f"sample: the largest logit of row {found.index(-1)} is not finite, needs finite"
        )
    return found


_NEUTRAL = knobs_of(SamplingOptions(temperature=0.0, repeat_last_n=0)).array()
