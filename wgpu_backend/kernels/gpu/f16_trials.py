"""Graphs in which rules round few columns to f16, for the self-test."""

from __future__ import annotations

from functools import partial

import numpy as np

from wgpu_backend import dtypes
from wgpu_backend.kernels.trials import (
    F16_ERROR,
    Context,
    Tensor,
    Trial,
    attention_into_product,
    f16_weight,
    gated_into_product,
    normal,
    normed_sum,
    quantised,
)


def _few_columns(context: Context, rng: np.random.Generator) -> Tensor:
    """Weights in bytes with a sign, in nibbles and in f16."""
    made = [quantised(context, rng, dtype) for dtype in (dtypes.Q8_0, dtypes.Q4_0)]
    made.append(f16_weight(context, rng, 40, 256))
    first, second, third = (weight.mulmat(normal(context, rng, 1, 256)) for weight in made)
    return first.concat(second, axis=1).concat(third, axis=1)


def _product_of_a_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight, scale = quantised(context, rng, dtypes.Q4_0), normal(context, rng, 256)
    return weight.mulmat(normal(context, rng, 3, 256).rms_norm(scale, eps=1e-5))


F16_TRIALS = (
    Trial("linear_f16_groups", F16_ERROR, _few_columns, in_bytes=False),
    Trial(
        "f16_weighted",
        F16_ERROR,
        _product_of_a_norm,
        before=("linear_f16_groups",),
        in_bytes=False,
    ),
    Trial(
        "attention_merge_f16",
        F16_ERROR,
        partial(attention_into_product, splits=2),
        before=("linear_f16_groups",),
        in_bytes=False,
    ),
    Trial(
        "linear_gated_f16",
        3 * F16_ERROR,  # of a gate, of what it multiplies, and of the product behind them
        gated_into_product,
        before=("linear_f16_groups", "linear_gated"),
        in_bytes=False,
    ),
    Trial(
        "linear_add_f16",
        F16_ERROR,
        normed_sum,
        before=("linear_f16_groups", "f16_weighted"),
        in_bytes=False,
    ),
)
