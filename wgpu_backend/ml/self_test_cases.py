"""Graphs that the self-test runs: those without which nothing goes, and one for each fusion rule.

Each is a function of a context and random numbers, so that a device and NumPy are given the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from wgpu_backend import dtypes
from wgpu_backend.kernels.table import FAMILIES
from wgpu_backend.kernels.trials import (
    HALVES_ERROR,
    LARGEST_ERROR,
    ROUNDING_ERROR,
    attended,
    attention,
    attention_into_product,
    by_expert,
    halves,
    normal,
    quantised,
)
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.attention import Scores
from wgpu_backend.ops.sampling import sample_into
from wgpu_backend.sample import SamplingOptions, sampling_params_of

Make = Callable[[Context, np.random.Generator], Tensor]
# Rules without which the one under test never finds what it looks for.
BEFORE = {
    "linear_gated": ("linear_q8",),
    "q8_weighted": ("linear_q8",),
    "rms_norm_pair": ("linear_q8_pair",),
    "rope_attention": ("rope_put",),
    "rope_attention_splits": ("rope_put",),
    "attention_merge_q8": ("linear_q8",),
    "linear_by_expert_tiles": ("linear_by_expert_add",),
    **{trial.rule: trial.before for family in FAMILIES for trial in family.trials},
}


def cases() -> Iterator[tuple[str, Make]]:
    """Graphs without which nothing goes, as they are without fusion."""
    yield "matrix product", lambda c, r: normal(c, r, 65, 96).mulmat(normal(c, r, 37, 96))
    yield "strided product", lambda c, r: normal(c, r, 7, 33).mulmat(normal(c, r, 5, 33))
    for dtype in (dtypes.Q8_0, dtypes.Q4_0, dtypes.Q5_1):
        yield (
            f"{dtype} product",
            lambda c, r, d=dtype: quantised(c, r, d).mulmat(normal(c, r, 1, 256)),
        )
    yield "softmax", lambda c, r: normal(c, r, 3, 257).softmax()
    yield "rms_norm", lambda c, r: normal(c, r, 3, 257).rms_norm(eps=1e-5)
    yield "attention", attention
    yield "attention of a token a sequence", lambda c, r: attention(c, r, tokens=2)


def fused_cases() -> Iterator[tuple[str, float, Make]]:
    """Graphs in which a rule applies, with the largest error of its op."""
    yield "chain", LARGEST_ERROR, lambda c, r: (normal(c, r, 5, 33).silu().sqr()).tanh()
    yield "linear_q8", ROUNDING_ERROR, _rounded_products
    yield "linear_q8_pair", LARGEST_ERROR, _precise_product
    yield "linear_q8", ROUNDING_ERROR, _rounded_sum
    yield "linear_gated", ROUNDING_ERROR, _gated
    yield "linear_f16", HALVES_ERROR, _products_in_f16
    yield "q8_weighted", ROUNDING_ERROR, _rounded_norm
    yield "rms_norm_pair", LARGEST_ERROR, _split_norm
    yield "rope_put", LARGEST_ERROR, _cached_attention
    yield "rope_attention", LARGEST_ERROR, _next_token
    yield "rope_attention", LARGEST_ERROR, lambda c, r: _next_token(c, r, norms=True)
    yield "rope_attention_splits", LARGEST_ERROR, lambda c, r: _next_token(c, r, splits=2)
    yield "attention_merge_q8", ROUNDING_ERROR, lambda c, r: attention_into_product(c, r, splits=2)
    yield "paged_attention", HALVES_ERROR, lambda c, r: attention(c, r, tokens=2)
    yield "paged_attention_splits", HALVES_ERROR, lambda c, r: attention(c, r, tokens=2, splits=3)
    yield "top_k_sample_into", 0.0, _sampled
    yield "route", LARGEST_ERROR, _routed
    yield "linear_by_expert_add", LARGEST_ERROR, by_expert
    yield "linear_by_expert_tiles", LARGEST_ERROR, by_expert
    for family in FAMILIES:
        yield from ((trial.rule, trial.largest_error, trial.build) for trial in family.trials)


def _rounded_products(context: Context, rng: np.random.Generator) -> Tensor:
    """Products in several formats, for one column and for some, side by side."""
    xs = normal(context, rng, 1, 256), normal(context, rng, 9, 256)
    formats = (dtypes.Q4_0, dtypes.Q6_K)
    made = [quantised(context, rng, d).mulmat(x).reshape(-1) for d in formats for x in xs]
    first, *rest = made
    for tensor in rest:
        first = first.concat(tensor, axis=0)
    return first


def _products_in_f16(context: Context, rng: np.random.Generator) -> Tensor:
    """A product of many columns, which hardware with f16 rounds."""
    return halves(context, rng, 65, 96).mulmat(normal(context, rng, 37, 96))


def _precise_product(context: Context, rng: np.random.Generator) -> Tensor:
    return quantised(context, rng, dtypes.Q4_0).mulmat_full_prec(normal(context, rng, 1, 256))


def _rounded_sum(context: Context, rng: np.random.Generator) -> Tensor:
    weight, bias = quantised(context, rng, dtypes.Q4_0), normal(context, rng, 40)
    return weight.linear(normal(context, rng, 3, 256), bias)


def _gated(context: Context, rng: np.random.Generator) -> Tensor:
    both = quantised(context, rng, dtypes.Q4_0)
    x = normal(context, rng, 3, 256)
    gate, up = both.slice(0, 0, 16), both.slice(0, 16, 32)
    return gate.mulmat(x).swiglu(up.mulmat(x))


def _rounded_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight, scale = quantised(context, rng, dtypes.Q4_0), normal(context, rng, 256)
    return weight.mulmat(normal(context, rng, 3, 256).rms_norm(scale, eps=1e-5))


def _split_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight = quantised(context, rng, dtypes.Q4_0)
    return weight.mulmat_full_prec(normal(context, rng, 3, 256).rms_norm(eps=1e-5))


def _cached_attention(context: Context, rng: np.random.Generator) -> Tensor:
    """Three tokens rotated, put into a cache of two blocks, and attended to."""
    positions = context.from_ints([0, 1, 2])
    table = positions.rope_table(context.from_numpy(np.float32(0.1) ** np.arange(16)))
    q = normal(context, rng, 3, 4, 32).rope(table)
    k, v = normal(context, rng, 3, 2, 32).rope(table), normal(context, rng, 3, 2, 32)
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


def _next_token(
    context: Context, rng: np.random.Generator, *, norms: bool = False, splits: int = 1
) -> Tensor:
    """A token whose queries, key and value are parts of one tensor, behind two others."""
    wide = normal(context, rng, 1, 256).tanh()
    ends = ((0, 128), (128, 192), (192, 256))
    q, k, v = (wide.slice(1, start, stop).reshape(1, -1, 32) for start, stop in ends)
    if norms:
        q, k = (x.rms_norm(normal(context, rng, 32), eps=1e-5) for x in (q, k))
    positions, slot = context.from_ints([2]), context.from_ints([34])
    table = positions.rope_table(context.from_numpy(np.float32(0.1) ** np.arange(16)))
    keys = context.zeros(64, 64).set_rows(k.rope(table).reshape(1, -1), slot)
    values = context.zeros(64, 64).set_rows(v.contiguous().reshape(1, -1), slot)
    places = positions, context.from_ints([0]), context.from_ints([1, 0], 1, 2)
    return attended(q.rope(table), keys, values, *places, splits=splits)


def _sampled(context: Context, rng: np.random.Generator) -> Tensor:
    """Tokens of two rows of logits, chosen among the largest of several parts."""
    logits = normal(context, rng, 2, 9000)
    knobs = sampling_params_of(SamplingOptions(temperature=1.5)).array()
    draws = np.array([[1 << 31, 1], [1 << 30, 0]], np.uint32)
    kept = context.zeros(2, dtype=dtypes.I32)
    rest = context.from_numpy(np.tile(knobs, (2, 1))), context.from_numpy(draws, dtypes.U32)
    return cast("Tensor", sample_into(kept, logits, logits.top_k(k=40), *rest))


def _routed(context: Context, rng: np.random.Generator) -> Tensor:
    """Weights of the experts of five tokens, and which they are."""
    scores = normal(context, rng, 5, 33).softmax()
    ids = scores.top_k(4)
    weights = scores.reshape(5, 33, 1).rows(ids).reshape(5, 4)
    return (weights / weights.sum_rows()).concat(ids.cast(dtype=dtypes.F32), axis=1)
