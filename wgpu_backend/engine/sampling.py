"""Sampling on the device: the ops a plan asks for, and what they are given each step.

The graph that `build` records serves every token, every seed and every option that its plan
covers; only the arrays of `inputs` differ. The tokens stay on the device, in places of a state that
steps share, so that a step can be submitted before the host knows what the one before it chose: it
refers to the place instead, by `wgpu_backend.ops.sampling.reference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from wgpu_backend.dtypes import F32, I32, U32
from wgpu_backend.errors import BackendError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.sampling import recall, sample_into
from wgpu_backend.sample import Knobs, Plan, Sampler, SamplingOptions, knobs_of

KNOBS, HISTORY, DRAWS = "sampling_knobs", "sampling_history", "sampling_draws"
NOWHERE = (1 << 32) - 1  # a place that no state has


def build(context: Context, logits: Tensor, plan: Plan, kept: Tensor) -> Tensor:
    """Add the choice of a token for each row of logits.

    Parameters
    ----------
    context : Context
    logits : (rows, vocab), f32
    plan : Plan
        Not the host's.
    kept : (places,), i32
        State that tokens are put into, each in its place.

    Returns
    -------
    (places,), i32
        `kept` after that, for `checked`.

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
    draws = context.input(DRAWS, (rows, 2), U32)
    if plan.history:
        history = recall(context.input(HISTORY, (rows, plan.history), I32), kept)
        logits = logits.penalise(history, knobs)
    chosen = sample_into(kept, logits, logits.top_k(k=plan.candidates), knobs, draws)
    return cast("Tensor", chosen)


def inputs(
    samplers: Sequence[Sampler],
    histories: Sequence[Sequence[int]],
    places: Sequence[int],
    plan: Plan,
    rows: int = 0,
) -> dict[str, Array]:
    """Values of the inputs of one step; takes a random number from each sampler.

    Parameters
    ----------
    samplers : sequence of Sampler
        One for each row that counts.
    histories : sequence of sequence of int
        Tokens of each sequence so far, or references to them, the oldest first.
    places : sequence of int
        Where the token of each goes.
    plan : Plan
        The one given to `build`; it covers the options of all samplers.
    rows : int
        Rows of the graph where that is more: those behind choose for nobody.

    Returns
    -------
    dict of str to ndarray
    """
    count = max(rows, len(samplers))
    knobs = np.tile(_NEUTRAL, (count, 1))
    draws = np.tile(np.array([0, NOWHERE], np.uint32), (count, 1))
    history = np.full((count, plan.history), -1, np.int32)
    for row, (sampler, seen) in enumerate(zip(samplers, histories, strict=True)):
        knobs[row] = sampler.knobs.array()
        draws[row] = sampler.draw(), places[row]
        recent = sampler.recent(seen)
        history[row, : len(recent)] = recent
    values: dict[str, Array] = {KNOBS: knobs, DRAWS: draws}
    return {**values, HISTORY: history} if plan.history else values


def checked(tokens: Array) -> list[int]:
    """Tokens that the device chose.

    Parameters
    ----------
    tokens : (rows,), int32
        What their places hold.

    Raises
    ------
    BackendError
        The logits of one were NaN or infinite.
    """
    found = [int(token) for token in tokens]
    if min(found, default=0) < 0:
        raise BackendError(
            f"sample: the largest logit of row {found.index(-1)} is not finite, needs finite; "
            "if device 'cpu' says so, too, the model's file is damaged"
        )
    return found


_NEUTRAL = knobs_of(SamplingOptions(temperature=0.0, repeat_last_n=0)).array()
