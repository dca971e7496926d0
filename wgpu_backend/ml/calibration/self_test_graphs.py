"""Graphs of the self-test: those that every model needs, and one for each fusion rule.

Each is a function of a context and random numbers, so that a device and NumPy are given the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from wgpu_backend import dtypes
from wgpu_backend.kernels.cases import (
    LARGEST_ERROR,
    ROUNDING_ERROR,
    attention,
    by_expert,
    draw_quantised,
    gated_into_product,
    next_token,
    normal,
    normed_sum,
)
from wgpu_backend.kernels.table import FAMILIES
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.attention.paged import Scores

Make = Callable[[Context, np.random.Generator], Tensor]
# Rules without which the one under test never finds what it looks for.
BEFORE = {
    "linear_gated": ("linear_q8",),
    "q8_weighted": ("linear_q8",),
    "linear_gated_q8": ("linear_q8", "linear_gated"),
    "linear_add_q8": ("linear_q8", "q8_weighted"),
    "rms_norm_pair": ("linear_q8_pair",),
    "q16_weighted": ("linear_q16",),
    "linear_gated_q16": ("linear_q16", "linear_gated"),
    "linear_add_q16": ("linear_q16", "q16_weighted"),
    "rope_attention": ("rope_put",),
    "heads_put": ("rope_put",),
    "latent_put": ("rope_join",),
    "linear_by_expert_tiles": ("linear_by_expert_add",),
    "linear_by_expert_sum": ("expert_sum",),
    **{trial.rule: trial.before for family in FAMILIES for trial in family.cases},
}

# Rules that apply where eight bits do not pay.
INSTEAD_OF_BYTES = {t.rule for family in FAMILIES for t in family.cases if not t.in_bytes}


def cases() -> Iterator[tuple[str, Make]]:
    """Yield the graphs that every model needs, without fusion."""
    yield "matrix product", lambda c, r: normal(c, r, 65, 96).mulmat(normal(c, r, 37, 96))
    yield "strided product", lambda c, r: normal(c, r, 7, 33).mulmat(normal(c, r, 5, 33))
    for dtype in (dtypes.Q8_0, dtypes.Q4_0, dtypes.Q5_1):
        yield (
            f"{dtype} product",
            lambda c, r, d=dtype: draw_quantised(c, r, d).mulmat(normal(c, r, 1, 256)),
        )
    yield "softmax", lambda c, r: normal(c, r, 3, 257).softmax()
    yield "rms_norm", lambda c, r: normal(c, r, 3, 257).rms_norm(eps=1e-5)
    yield "attention", attention
    yield "attention of a token a sequence", lambda c, r: attention(c, r, tokens=2)


def fused_cases() -> Iterator[tuple[str, float, Make]]:
    """Yield graphs in which a rule applies, with the largest error of its op."""
    yield "chain", LARGEST_ERROR, lambda c, r: (normal(c, r, 5, 33).silu().sqr()).tanh()
    yield "linear_q8", ROUNDING_ERROR, _rounded_products
    yield "linear_q8_pair", LARGEST_ERROR, _precise_product
    yield "linear_q8", ROUNDING_ERROR, _rounded_sum
    yield "linear_gated", ROUNDING_ERROR, _gated_product
    yield "q8_weighted", ROUNDING_ERROR, _rounded_norm
    yield "linear_gated_q8", ROUNDING_ERROR, gated_into_product
    yield "linear_add_q8", ROUNDING_ERROR, normed_sum
    yield "rms_norm_pair", LARGEST_ERROR, _split_norm
    yield "linear_q16", LARGEST_ERROR, _precise_product
    yield "q16_weighted", LARGEST_ERROR, _rounded_norm
    # The errors of a gate, of its other factor, and of the product after them add up.
    yield "linear_gated_q16", 3 * LARGEST_ERROR, gated_into_product
    yield "linear_add_q16", LARGEST_ERROR, normed_sum
    yield "rope_put", LARGEST_ERROR, _cached_attention
    yield "rope_attention", LARGEST_ERROR, next_token
    yield "rope_attention", LARGEST_ERROR, lambda c, r: next_token(c, r, norms=True)
    yield "route", LARGEST_ERROR, _expert_routing
    yield "linear_by_expert_add", LARGEST_ERROR, by_expert
    yield "linear_by_expert_tiles", LARGEST_ERROR, by_expert
    yield "heads_put", LARGEST_ERROR, _normed_heads
    yield "rope_join", LARGEST_ERROR, _joined_parts
    yield "latent_put", LARGEST_ERROR, _latent_attention
    yield "rms_norm_add", LARGEST_ERROR, _normed_residual
    yield "norm_chain", LARGEST_ERROR, _gated_norm
    yield (
        "group_norm_silu",
        LARGEST_ERROR,
        lambda c, r: normal(c, r, 2, 33, 12).group_norm(4).silu(),
    )
    yield "linear_by_expert_gated", LARGEST_ERROR, _gated_experts
    yield "expert_sum", LARGEST_ERROR, _summed_experts
    yield "linear_by_expert_sum", LARGEST_ERROR, _summed_products
    for family in FAMILIES:
        yield from ((trial.rule, trial.largest_error, trial.build) for trial in family.cases)


def _rounded_products(context: Context, rng: np.random.Generator) -> Tensor:
    """Multiply in several formats, for one column and for several."""
    xs = normal(context, rng, 1, 256), normal(context, rng, 9, 256)
    formats = (dtypes.Q4_0, dtypes.Q6_K)
    made = [draw_quantised(context, rng, d).mulmat(x).reshape(-1) for d in formats for x in xs]
    first, *rest = made
    for tensor in rest:
        first = first.concat(tensor, axis=0)
    return first


def _precise_product(context: Context, rng: np.random.Generator) -> Tensor:
    return draw_quantised(context, rng, dtypes.Q4_0).mulmat_full_prec(normal(context, rng, 1, 256))


def _rounded_sum(context: Context, rng: np.random.Generator) -> Tensor:
    weight, bias = draw_quantised(context, rng, dtypes.Q4_0), normal(context, rng, 40)
    return weight.linear(normal(context, rng, 3, 256), bias)


def _gated_product(context: Context, rng: np.random.Generator) -> Tensor:
    both = draw_quantised(context, rng, dtypes.Q4_0)
    x = normal(context, rng, 3, 256)
    gate, up = both.slice(0, 0, 16), both.slice(0, 16, 32)
    return gate.mulmat(x).swiglu(up.mulmat(x))


def _rounded_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight, scale = draw_quantised(context, rng, dtypes.Q4_0), normal(context, rng, 256)
    return weight.mulmat(normal(context, rng, 3, 256).rms_norm(scale, eps=1e-5))


def _split_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight = draw_quantised(context, rng, dtypes.Q4_0)
    return weight.mulmat_full_prec(normal(context, rng, 3, 256).rms_norm(eps=1e-5))


def _cached_attention(context: Context, rng: np.random.Generator, *, norms: bool = False) -> Tensor:
    """Rotate three tokens, put them into a cache of two blocks, and attend to them."""
    positions = context.from_ints([0, 1, 2])
    table = positions.rope_table(context.from_numpy(np.float32(0.1) ** np.arange(16)))
    wide = normal(context, rng, 3, 256)
    heads = [wide.slice(1, a, b).reshape(3, -1, 32) for a, b in ((0, 128), (128, 192))]
    if norms:
        heads = [x.rms_norm(normal(context, rng, 32), eps=1e-5) for x in heads]
    q, k = (x.rope(table) for x in heads)
    v = wide.slice(1, 192, 256).contiguous().reshape(3, 2, 32)
    slots = context.from_ints([33, 34, 35])
    keys = context.zeros(64, 64).set_rows(k.reshape(3, -1), slots)
    values = context.zeros(64, 64).set_rows(v.reshape(3, -1), slots)
    return q.paged_attention(
        keys,
        values,
        positions,
        context.from_ints([0, 0, 0]),
        context.from_ints([1, 0], 1, 2),
        scores=Scores(block=32, scale=0.2, kv_heads=2),
    )


def _normed_heads(context: Context, rng: np.random.Generator) -> Tensor:
    return _cached_attention(context, rng, norms=True)


def _expert_routing(context: Context, rng: np.random.Generator) -> Tensor:
    """Route five tokens: the weights and ids of their experts."""
    scores = normal(context, rng, 5, 33).softmax()
    ids = scores.top_k(4)
    weights = scores.reshape(5, 33, 1).rows(ids).reshape(5, 4)
    return (weights / weights.sum_rows()).concat(ids.cast(dtype=dtypes.F32), axis=1)


def _summed_experts(context: Context, rng: np.random.Generator) -> Tensor:
    rows, weights = normal(context, rng, 5, 3, 36), normal(context, rng, 5, 3, 1)
    return normal(context, rng, 5, 36).add((rows * weights).sum(1).scale(factor=0.5))


def _summed_products(context: Context, rng: np.random.Generator) -> Tensor:
    """Multiply with three of five experts of twelve rows for four tokens, and add a residual."""
    matrices = draw_quantised(context, rng, dtypes.Q4_0, rows=60).reshape(5, 12, 256)
    ids = context.from_numpy(np.stack([rng.permutation(5)[:3] for _ in range(4)]))
    rows = matrices.mulmat_id(normal(context, rng, 4, 3, 256), ids)
    return normal(context, rng, 4, 12).add((rows * normal(context, rng, 4, 3, 1)).sum(1))


def _gated_experts(context: Context, rng: np.random.Generator) -> Tensor:
    """Multiply with three experts of 13 rows, each with gate rows above projection rows."""
    both = draw_quantised(context, rng, dtypes.Q4_0, rows=78).reshape(3, 26, 256)
    ids = context.from_numpy(np.stack([rng.permutation(3)[:2] for _ in range(4)]))
    gate, up = both.mulmat_id(normal(context, rng, 4, 1, 256), ids).chunk(2, 13)
    return gate.swiglu(up)


def _normed_residual(context: Context, rng: np.random.Generator) -> Tensor:
    x, residual, weight = (normal(context, rng, *shape) for shape in ((5, 260), (5, 260), (260,)))
    return residual.add(x.rms_norm(weight, eps=1e-5))


def _gated_norm(context: Context, rng: np.random.Generator) -> Tensor:
    """Gate normed heads."""
    x, gate, weight = (normal(context, rng, *shape) for shape in ((5, 3, 64), (5, 192), (64,)))
    return gate.sigmoid().mul(x.rms_norm(weight, eps=1e-5).reshape(5, 192))


def _latent_attention(context: Context, rng: np.random.Generator) -> Tensor:
    """Attend two tokens to latents of 64 plain and 16 rotated values, shared by all heads."""
    frequencies = context.from_numpy(np.float32(0.1) ** np.arange(8))
    table = context.from_ints([0, 1]).rope_table(frequencies)
    wide, heads = normal(context, rng, 2, 84), normal(context, rng, 2, 3, 80)
    latents = wide.slice(1, 0, 64).rms_norm(normal(context, rng, 64), eps=1e-5).reshape(2, 1, 64)
    keys = latents.concat(wide.slice(1, 64, 80).reshape(2, 1, 16).rope(table), axis=2)
    cache = context.zeros(64, 80).set_rows(keys.reshape(2, 80), context.from_ints([33, 34]))
    own, rest = heads.chunk_sections(-1, 64, 16)
    return own.concat(rest.rope(table), axis=2).paged_attention(
        cache,
        cache,
        context.from_ints([0, 1]),
        context.from_ints([0, 0]),
        context.from_ints([1, 0], 1, 2),
        scores=Scores(block=32, scale=0.2, kv_heads=1, v_cols=64),
    )


def _joined_parts(context: Context, rng: np.random.Generator) -> Tensor:
    """Put keys of three tokens, a normed and a rotated part, into a cache."""
    frequencies = context.from_numpy(np.float32(0.1) ** np.arange(8))
    table = context.from_ints([3, 1, 2]).rope_table(frequencies)
    wide = normal(context, rng, 3, 84)
    latents = wide.slice(1, 0, 64).rms_norm(normal(context, rng, 64), eps=1e-5).reshape(3, 1, 64)
    shared = wide.slice(1, 64, 80).reshape(3, 1, 16).rope(table)
    keys = latents.concat(shared, axis=2).reshape(3, 80)
    return context.zeros(8, 80).set_rows(keys, context.from_ints([5, -1, 2]))
