"""Graphs that the self-test runs: those without which nothing goes, and one for each fusion rule.

Each is a function of a context and random numbers, so that a device and NumPy are given the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
from gguf import GGMLQuantizationType, quants

from wgpu_backend import dtypes
from wgpu_backend.dtypes import F16, DType
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.attention import Scores, attention_merge, paged_attention_splits
from wgpu_backend.ops.sampling import sample_into
from wgpu_backend.sample import SamplingOptions, sampling_params_of

ROUNDING_ERROR = 1e-3  # NMSE where activations are rounded to eight bits; some 4e-5
HALVES_ERROR = 1e-5  # where pairs of f16 are multiplied; up to 1e-6
LARGEST_ERROR = 1e-6  # NMSE; sums in f32 come out near 1e-13, a wrong kernel near 1
Make = Callable[[Context, np.random.Generator], Tensor]
# Bytes of a block with a scale in f16, of formats that gguf does not make; any other bytes will do.
_SCALES = {dtypes.Q4_K: [[0, 1], [2, 3]], dtypes.Q6_K: [[208, 209]]}
# Rules without which the one under test never finds what it looks for.
BEFORE = {
    "linear_gated": ("linear_q8",),
    "q8_weighted": ("linear_q8",),
    "linear_gated_q8": ("linear_q8", "linear_gated"),
    "linear_add_q8": ("linear_q8", "q8_weighted"),
    "linear_add_weighted": ("norm_weighted",),
    "rms_norm_pair": ("linear_q8_pair",),
    "paged_attention_q8": ("linear_q8",),
    "rope_attention": ("rope_put",),
    "rope_attention_splits": ("rope_put",),
    "attention_merge_q8": ("linear_q8",),
    "linear_by_expert_tiles": ("linear_by_expert_add",),
    "linear_by_expert_q8": ("linear_by_expert_add", "linear_by_expert_tiles"),
}


def cases() -> Iterator[tuple[str, Make]]:
    """Graphs without which nothing goes, as they are without fusion."""
    yield "matrix product", lambda c, r: _normal(c, r, 65, 96).mulmat(_normal(c, r, 37, 96))
    yield "strided product", lambda c, r: _normal(c, r, 7, 33).mulmat(_normal(c, r, 5, 33))
    for dtype in (dtypes.Q8_0, dtypes.Q4_0, dtypes.Q5_1):
        yield (
            f"{dtype} product",
            lambda c, r, d=dtype: _quantised(c, r, d).mulmat(_normal(c, r, 1, 256)),
        )
    yield "softmax", lambda c, r: _normal(c, r, 3, 257).softmax()
    yield "rms_norm", lambda c, r: _normal(c, r, 3, 257).rms_norm(eps=1e-5)
    yield "attention", _attention
    yield "attention of a token a sequence", lambda c, r: _attention(c, r, tokens=2)


def fused_cases() -> Iterator[tuple[str, float, Make]]:
    """Graphs in which a rule applies, with the largest error of its op."""
    yield "chain", LARGEST_ERROR, lambda c, r: (_normal(c, r, 5, 33).silu().sqr()).tanh()
    yield "linear_q8", ROUNDING_ERROR, _rounded_products
    yield "linear_q8_pair", LARGEST_ERROR, _precise_product
    yield "linear_q8", ROUNDING_ERROR, _rounded_sum
    yield "linear_gated", ROUNDING_ERROR, _gated
    yield "linear_f16", HALVES_ERROR, _products_in_f16
    yield "q8_weighted", ROUNDING_ERROR, _rounded_norm
    yield "linear_gated_q8", ROUNDING_ERROR, _gated_into_product
    yield "linear_add_q8", ROUNDING_ERROR, _normed_sum
    yield "norm_weighted", LARGEST_ERROR, _products_of_a_norm
    yield "linear_add_weighted", LARGEST_ERROR, _weighted_sum
    yield "rms_norm_pair", LARGEST_ERROR, _split_norm
    yield "rope_put", LARGEST_ERROR, _cached_attention
    yield "paged_attention_q8", ROUNDING_ERROR, _attention_into_product
    yield "rope_attention", LARGEST_ERROR, _next_token
    yield "rope_attention", LARGEST_ERROR, lambda c, r: _next_token(c, r, norms=True)
    yield "rope_attention_splits", LARGEST_ERROR, lambda c, r: _next_token(c, r, splits=2)
    yield "attention_merge_q8", ROUNDING_ERROR, lambda c, r: _attention_into_product(c, r, splits=2)
    yield "paged_attention", HALVES_ERROR, lambda c, r: _attention(c, r, tokens=2)
    yield "paged_attention_splits", HALVES_ERROR, lambda c, r: _attention(c, r, tokens=2, splits=3)
    yield "top_k_sample_into", 0.0, _sampled
    yield "route", LARGEST_ERROR, _routed
    yield "linear_by_expert_add", LARGEST_ERROR, _by_expert
    yield "linear_by_expert_tiles", LARGEST_ERROR, _by_expert
    yield "linear_by_expert_q8", ROUNDING_ERROR, _by_expert


def _rounded_products(context: Context, rng: np.random.Generator) -> Tensor:
    """Products in several formats, for one column and for some, side by side."""
    xs = _normal(context, rng, 1, 256), _normal(context, rng, 9, 256)
    formats = (dtypes.Q4_0, dtypes.Q6_K)
    made = [_quantised(context, rng, d).mulmat(x).reshape(-1) for d in formats for x in xs]
    first, *rest = made
    for tensor in rest:
        first = first.concat(tensor, axis=0)
    return first


def _products_in_f16(context: Context, rng: np.random.Generator) -> Tensor:
    """A product of many columns, which hardware with f16 rounds."""
    return _halves(context, rng, 65, 96).mulmat(_normal(context, rng, 37, 96))


def _precise_product(context: Context, rng: np.random.Generator) -> Tensor:
    return _quantised(context, rng, dtypes.Q4_0).mulmat_full_prec(_normal(context, rng, 1, 256))


def _rounded_sum(context: Context, rng: np.random.Generator) -> Tensor:
    weight, bias = _quantised(context, rng, dtypes.Q4_0), _normal(context, rng, 40)
    return weight.linear(_normal(context, rng, 3, 256), bias)


def _gated(context: Context, rng: np.random.Generator) -> Tensor:
    both = _quantised(context, rng, dtypes.Q4_0)
    x = _normal(context, rng, 3, 256)
    gate, up = both.slice(0, 0, 16), both.slice(0, 16, 32)
    return gate.mulmat(x).swiglu(up.mulmat(x))


def _rounded_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight, scale = _quantised(context, rng, dtypes.Q4_0), _normal(context, rng, 256)
    return weight.mulmat(_normal(context, rng, 3, 256).rms_norm(scale, eps=1e-5))


def _gated_into_product(context: Context, rng: np.random.Generator) -> Tensor:
    both = _quantised(context, rng, dtypes.Q4_0, rows=64)
    x = _normal(context, rng, 3, 256)
    gate, up = both.slice(0, 0, 32), both.slice(0, 32, 64)
    down = _quantised(context, rng, dtypes.Q4_0, values=32)
    return down.mulmat(gate.mulmat(x).swiglu(up.mulmat(x)))


def _normed_sum(context: Context, rng: np.random.Generator) -> Tensor:
    """A residual that is read, and the product of its norm."""
    weight, x = _quantised(context, rng, dtypes.Q4_0, rows=32), _normal(context, rng, 3, 256)
    total = weight.linear(x, _normal(context, rng, 3, 32))
    normed = total.rms_norm(_normal(context, rng, 32), eps=1e-5)
    return _quantised(context, rng, dtypes.Q4_0, values=32).mulmat(normed).concat(total, axis=1)


def _products_of_a_norm(context: Context, rng: np.random.Generator) -> Tensor:
    """A product, and two that are joined, of one norm."""
    normed = _normal(context, rng, 3, 320).rms_norm(_normal(context, rng, 320), eps=1e-5)
    both = _halves(context, rng, 64, 320)
    gate, up = both.slice(0, 0, 32), both.slice(0, 32, 64)
    joined = gate.mulmat(normed).swiglu(up.mulmat(normed))
    return _halves(context, rng, 40, 320).mulmat(normed).concat(joined, axis=1)


def _weighted_sum(context: Context, rng: np.random.Generator) -> Tensor:
    """A residual that is read, and the product of its norm."""
    total = _halves(context, rng, 96, 64).linear(
        _normal(context, rng, 3, 64), _normal(context, rng, 3, 96)
    )
    normed = total.rms_norm(_normal(context, rng, 96), eps=1e-5)
    return _halves(context, rng, 40, 96).mulmat(normed).concat(total, axis=1)


def _split_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight = _quantised(context, rng, dtypes.Q4_0)
    return weight.mulmat_full_prec(_normal(context, rng, 3, 256).rms_norm(eps=1e-5))


def _attention_into_product(context: Context, rng: np.random.Generator, splits: int = 1) -> Tensor:
    weight = _quantised(context, rng, dtypes.Q4_0)
    return weight.mulmat(_attention(context, rng, heads=8, splits=splits).reshape(5, 256))


def _cached_attention(context: Context, rng: np.random.Generator) -> Tensor:
    """Three tokens rotated, put into a cache of two blocks, and attended to."""
    positions = context.from_ints([0, 1, 2])
    table = positions.rope_table(context.from_numpy(np.float32(0.1) ** np.arange(16)))
    q = _normal(context, rng, 3, 4, 32).rope(table)
    k, v = _normal(context, rng, 3, 2, 32).rope(table), _normal(context, rng, 3, 2, 32)
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
    wide = _normal(context, rng, 1, 256).tanh()
    ends = ((0, 128), (128, 192), (192, 256))
    q, k, v = (wide.slice(1, start, stop).reshape(1, -1, 32) for start, stop in ends)
    if norms:
        q, k = (x.rms_norm(_normal(context, rng, 32), eps=1e-5) for x in (q, k))
    positions, slot = context.from_ints([2]), context.from_ints([34])
    table = positions.rope_table(context.from_numpy(np.float32(0.1) ** np.arange(16)))
    keys = context.zeros(64, 64).set_rows(k.rope(table).reshape(1, -1), slot)
    values = context.zeros(64, 64).set_rows(v.contiguous().reshape(1, -1), slot)
    places = positions, context.from_ints([0]), context.from_ints([1, 0], 1, 2)
    return _attended(q.rope(table), keys, values, *places, splits=splits)


def _attended(q: Tensor, k: Tensor, v: Tensor, *places: Tensor, splits: int) -> Tensor:
    """Attention, in ranges that are joined where there are several."""
    scores = Scores(block=32, scale=0.2, kv_heads=2)
    if splits == 1:
        return q.paged_attention(k, v, *places, scores=scores)
    ranges = paged_attention_splits(q, k, v, *places, scores=scores, splits=splits)
    return cast("Tensor", attention_merge(ranges))


def _sampled(context: Context, rng: np.random.Generator) -> Tensor:
    """Tokens of two rows of logits, chosen among the largest of several parts."""
    logits = _normal(context, rng, 2, 9000)
    knobs = sampling_params_of(SamplingOptions(temperature=1.5)).array()
    draws = np.array([[1 << 31, 1], [1 << 30, 0]], np.uint32)
    kept = context.zeros(2, dtype=dtypes.I32)
    rest = context.from_numpy(np.tile(knobs, (2, 1))), context.from_numpy(draws, dtypes.U32)
    return cast("Tensor", sample_into(kept, logits, logits.top_k(k=40), *rest))


def _routed(context: Context, rng: np.random.Generator) -> Tensor:
    """Weights of the experts of five tokens, and which they are."""
    scores = _normal(context, rng, 5, 33).softmax()
    ids = scores.top_k(4)
    weights = scores.reshape(5, 33, 1).rows(ids).reshape(5, 4)
    return (weights / weights.sum_rows()).concat(ids.cast(dtype=dtypes.F32), axis=1)


def _by_expert(context: Context, rng: np.random.Generator) -> Tensor:
    """Products of fifty tokens with two of three experts each, and their biases."""
    experts = _quantised(context, rng, dtypes.Q4_0).slice(0, 0, 39).reshape(3, 13, 256)
    ids = context.from_numpy(np.stack([rng.permutation(3)[:2] for _ in range(50)]))
    y = experts.mulmat_id(_normal(context, rng, 50, 1, 256), ids)
    return y.add_id(_normal(context, rng, 3, 13), ids)


def _normal(context: Context, rng: np.random.Generator, *shape: int) -> Tensor:
    return context.from_numpy(rng.standard_normal(shape, np.float32))


def _quantised(
    context: Context, rng: np.random.Generator, dtype: DType, rows: int = 40, values: int = 256
) -> Tensor:
    assert dtype.ggml is not None
    if dtype in _SCALES:
        data = rng.integers(0, 256, (rows * values // dtype.block, dtype.block_nbytes), np.uint8)
        scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        for place in _SCALES[dtype]:
            data[:, place] = scale
    else:
        kind = GGMLQuantizationType(dtype.ggml)
        data = quants.quantize(rng.standard_normal((rows, values), np.float32), kind)
    return context.from_bytes(dtype, data.tobytes(), rows, values)


def _halves(context: Context, rng: np.random.Generator, rows: int, values: int) -> Tensor:
    """Weight in f16."""
    data = rng.standard_normal((rows, values), np.float32).astype(np.float16)
    return context.weight(F16, data.tobytes(), rows, values)


def _attention(
    context: Context, rng: np.random.Generator, heads: int = 4, tokens: int = 5, splits: int = 1
) -> Tensor:
    keys = _normal(context, rng, 96, 64).cast(dtype=F16)
    return _attended(
        _normal(context, rng, tokens, heads, 32),
        keys,
        _normal(context, rng, 96, 64).cast(dtype=F16),
        context.from_ints([63, 13, 40, 0, 63][:tokens]),
        context.from_ints([0, 1, 0, 1, 0][:tokens]),
        context.from_ints([2, 0, 1, 2], 2, 2),
        splits=splits,
    )
