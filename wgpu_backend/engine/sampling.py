"""Sampling on the device: the ops of a sampling plan, and their inputs at each step.

The graph that `build` records serves all tokens, seeds and options that its plan covers; only the
arrays of `inputs` differ. The tokens stay on the device, in slots of a state that steps share. So a
step can be submitted before the host knows the previous token: it refers to the slot instead, with
`wgpu_backend.ops.sampling.sampling.reference`.
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
from wgpu_backend.ops.sampling.host import (
    Plan,
    Sampler,
    SamplingOptions,
    SamplingParams,
    make_sampling_params,
)
from wgpu_backend.ops.sampling.sampling import resolve_tokens, sample_into

SAMPLING, HISTORY, DRAWS = "sampling_params", "sampling_history", "sampling_draws"
# A slot outside every state: the token is not written.
NOWHERE = (1 << 32) - 1


def build(context: Context, logits: Tensor, plan: Plan, token_slots: Tensor) -> Tensor:
    """Add the ops that choose a token for each row of logits.

    Parameters
    ----------
    logits : (rows, vocab), f32
    plan : Plan
        A plan for the device.
    token_slots : (slots,), i32
        State that receives each row's token in its slot.

    Returns
    -------
    (slots,), i32
        `token_slots` after the write, for `checked`.

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
    sampling = context.input(SAMPLING, (rows, len(SamplingParams._fields)), F32)
    draws = context.input(DRAWS, (rows, 2), U32)
    if plan.history:
        history = resolve_tokens(context.input(HISTORY, (rows, plan.history), I32), token_slots)
        logits = logits.penalise(history, sampling)
    chosen = sample_into(token_slots, logits, logits.top_k(k=plan.candidates), sampling, draws)
    return cast("Tensor", chosen)


def inputs(
    samplers: Sequence[Sampler],
    histories: Sequence[Sequence[int]],
    slots: Sequence[int],
    plan: Plan,
    rows: int = 0,
) -> dict[str, Array]:
    """Make the inputs of one step; draws a random number from each sampler.

    Parameters
    ----------
    samplers : sequence of Sampler
        One for each used row.
    histories : sequence of sequence of int
        Tokens of each sequence so far, or references to them, oldest first.
    slots : sequence of int
        Slot for each row's token.
    plan : Plan
        The plan given to `build`; it covers the options of all samplers.
    rows : int
        Rows of the graph, if more; the rest are padding.

    Returns
    -------
    dict of str to ndarray
    """
    count = max(rows, len(samplers))
    sampling = np.tile(NEUTRAL, (count, 1))
    draws = np.tile(np.array([0, NOWHERE], np.uint32), (count, 1))
    history = np.full((count, plan.history), -1, np.int32)
    for row, (sampler, seen) in enumerate(zip(samplers, histories, strict=True)):
        sampling[row] = sampler.sampling.array()
        draws[row] = sampler.draw(), slots[row]
        recent = sampler.recent(seen)
        history[row, : len(recent)] = recent
    values: dict[str, Array] = {SAMPLING: sampling, DRAWS: draws}
    return {**values, HISTORY: history} if plan.history else values


def checked(tokens: Array) -> list[int]:
    """Convert tokens that the device chose, and check them.

    Parameters
    ----------
    tokens : (rows,), int32
        Content of the token slots; -1 marks logits that are not finite.

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


NEUTRAL = make_sampling_params(SamplingOptions(temperature=0.0, repeat_last_n=0)).array()
