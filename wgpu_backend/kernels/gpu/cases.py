"""Self-test cases of this family's fusion rules."""

from __future__ import annotations

from functools import partial

import numpy as np

from wgpu_backend import dtypes
from wgpu_backend.kernels.cases import (
    F16_ERROR,
    LARGEST_ERROR,
    ROUNDING_ERROR,
    Context,
    FusionCase,
    Tensor,
    attend,
    attention,
    attention_into_product,
    by_expert,
    draw_quantised,
    f16_weight,
    gated_into_product,
    next_token,
    normal,
    normed_sum,
)
from wgpu_backend.ops.sampling.host import SamplingOptions, make_sampling_params
from wgpu_backend.ops.sampling.sampling import sample_into


def _prompts(context: Context, rng: np.random.Generator) -> Tensor:
    """Build attention of two prompts over a paged f16 cache, in one pass and in ranges."""
    q = normal(context, rng, 70, 4, 32)
    keys, values = (normal(context, rng, 192, 64).cast(dtype=dtypes.F16) for _ in "kv")
    places = (
        context.from_ints([*range(20, 60), *range(50, 80)]),
        context.from_ints([0] * 40 + [1] * 30),
        context.from_ints([5, 0, 3, 2, 1, 4], 2, 3),
    )
    whole, joined = (attend(q, keys, values, *places, splits=splits) for splits in (1, 2))
    return whole.concat(joined, axis=1)


def _plain_keys(context: Context, rng: np.random.Generator, *, masked: bool = False) -> Tensor:
    """Build attention over plain keys, without a mask or with an additive one."""
    q, k, v = (
        normal(context, rng, 45, 4, 24),
        normal(context, rng, 70, 2, 24),
        normal(context, rng, 70, 2, 32),
    )
    mask = normal(context, rng, 45, 70) if masked else None
    return q.scaled_dot_product_attention(k, v, mask, scale=0.2)


def _convolved(context: Context, rng: np.random.Generator) -> Tensor:
    """Build a convolution whose pixels and outputs are not multiples of a matrix unit's."""
    x, weight = normal(context, rng, 1, 7, 9, 64), f16_weight(context, rng, 20 * 9, 64)
    return x.conv2d(weight.reshape(20, 3, 3, 64), paddings=(1, 1))


def _products_in_f16(context: Context, rng: np.random.Generator) -> Tensor:
    """Build a product of many columns."""
    return f16_weight(context, rng, 65, 96).mulmat(normal(context, rng, 37, 96))


def _in_matrices(context: Context, rng: np.random.Generator) -> Tensor:
    """Build products of many columns, whose sizes are not multiples of a matrix unit's."""
    x = normal(context, rng, 37, 256)
    first = draw_quantised(context, rng, dtypes.Q4_0).mulmat(x)
    return first.concat(f16_weight(context, rng, 65, 256).mulmat(x), axis=1)


def _rounded_once(context: Context, rng: np.random.Generator) -> Tensor:
    """Build products of enough columns to round them once: blocks, in planes, and f16."""
    x = normal(context, rng, 130, 256)
    first = draw_quantised(context, rng, dtypes.Q4_0).mulmat(x)
    return first.concat(f16_weight(context, rng, 40, 256).mulmat(x), axis=1)


def _long_rows(context: Context, rng: np.random.Generator) -> Tensor:
    """Build a product whose rows are long enough to be split in two parts, and add a tensor."""
    weight = draw_quantised(context, rng, dtypes.Q4_0, values=1056)
    return weight.linear(normal(context, rng, 33, 1056), normal(context, rng, 33, 40))


def _normed_row(context: Context, rng: np.random.Generator) -> Tensor:
    """Build two joined products of a norm of one row."""
    x = normal(context, rng, 1, 320).rms_norm(normal(context, rng, 320), eps=1e-5)
    both = f16_weight(context, rng, 64, 320)
    gate, up = both.slice(0, 0, 32), both.slice(0, 32, 64)
    return gate.mulmat(x).swiglu(up.mulmat(x))


def _sample_tokens(context: Context, rng: np.random.Generator) -> Tensor:
    """Sample a token for each of two rows of logits, from the top-k of several parts of a row."""
    logits = normal(context, rng, 2, 9000)
    params = make_sampling_params(SamplingOptions(temperature=1.5)).array()
    draws = np.array([[1 << 31, 1], [1 << 30, 0]], np.uint32)
    token_slots = context.zeros(2, dtype=dtypes.I32)
    rest = context.from_numpy(np.tile(params, (2, 1))), context.from_numpy(draws, dtypes.U32)
    return sample_into(token_slots, logits, logits.top_k(k=40), *rest)


def _few_columns(context: Context, rng: np.random.Generator) -> Tensor:
    """Build products with weights in signed bytes, in nibbles and in f16."""
    made = [draw_quantised(context, rng, dtype) for dtype in (dtypes.Q8_0, dtypes.Q4_0)]
    made.append(f16_weight(context, rng, 40, 256))
    first, second, third = (weight.mulmat(normal(context, rng, 1, 256)) for weight in made)
    return first.concat(second, axis=1).concat(third, axis=1)


def _norm_product(context: Context, rng: np.random.Generator) -> Tensor:
    weight, scale = draw_quantised(context, rng, dtypes.Q4_0), normal(context, rng, 256)
    return weight.mulmat(normal(context, rng, 3, 256).rms_norm(scale, eps=1e-5))


# Rules that round columns to f16, where products do not round to bytes.
F16_TRIALS = (
    FusionCase("linear_f16_once", F16_ERROR, _rounded_once, before=("linear_f16",), in_bytes=False),
    FusionCase("linear_f16_groups", F16_ERROR, _few_columns, in_bytes=False),
    FusionCase(
        "f16_weighted",
        F16_ERROR,
        _norm_product,
        before=("linear_f16_groups",),
        in_bytes=False,
    ),
    FusionCase(
        "attention_merge_f16",
        F16_ERROR,
        partial(attention_into_product, splits=2),
        before=("linear_f16_groups",),
        in_bytes=False,
    ),
    FusionCase(
        "linear_gated_f16",
        # The gate, the value that it multiplies, and the product after them are each rounded.
        3 * F16_ERROR,
        gated_into_product,
        before=("linear_f16_groups", "linear_gated"),
        in_bytes=False,
    ),
    FusionCase(
        "linear_add_f16",
        F16_ERROR,
        normed_sum,
        before=("linear_f16_groups", "f16_weighted"),
        in_bytes=False,
    ),
)
CASES = (
    FusionCase("linear_matrix", F16_ERROR, _in_matrices),
    FusionCase("linear_f16", F16_ERROR, _products_in_f16),
    FusionCase("linear_by_expert_matrix", F16_ERROR, by_expert, ("linear_by_expert_tiles",)),
    FusionCase("linear_by_expert_f16", F16_ERROR, by_expert, ("linear_by_expert_tiles",)),
    FusionCase("linear_splits", LARGEST_ERROR, _long_rows),
    FusionCase("linear_norm", LARGEST_ERROR, _normed_row, ("linear_gated",)),
    FusionCase(
        "rope_attention_splits",
        LARGEST_ERROR,
        partial(next_token, splits=2),
        ("rope_put",),
    ),
    FusionCase(
        "attention_merge_q8",
        ROUNDING_ERROR,
        partial(attention_into_product, splits=2),
        ("linear_q8",),
    ),
    FusionCase(
        "attention_merge_q16",
        LARGEST_ERROR,
        partial(attention_into_product, splits=2),
        ("linear_q16",),
    ),
    FusionCase("attention_matrix", F16_ERROR, _prompts),
    FusionCase("attention_tiles", F16_ERROR, _prompts),
    FusionCase("scaled_attention_matrix", F16_ERROR, _plain_keys),
    FusionCase("scaled_attention_matrix", F16_ERROR, partial(_plain_keys, masked=True)),
    FusionCase("scaled_attention_tiles", F16_ERROR, _plain_keys),
    FusionCase("scaled_attention_tiles", F16_ERROR, partial(_plain_keys, masked=True)),
    FusionCase("convolve_matrix", F16_ERROR, _convolved),
    FusionCase("paged_attention", F16_ERROR, partial(attention, tokens=2)),
    FusionCase("paged_attention_splits", F16_ERROR, partial(attention, tokens=2, splits=3)),
    FusionCase("top_k_sample_into", 0.0, _sample_tokens),
    *F16_TRIALS,
)
