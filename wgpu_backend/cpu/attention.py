"""NumPy twins of `wgpu_backend.ops.attention.paged`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.f16_groups import f16_activations
from wgpu_backend.cpu.q8 import q8_activations
from wgpu_backend.cpu.q16 import q16_activations
from wgpu_backend.cpu.twin import Array, takes_f16, twin
from wgpu_backend.ops.attention.paged_options import Scores


@twin
@takes_f16
def paged_attention(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    *,
    scores: Scores,
    ends: Array | None = None,
    sinks: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Attention token by token over the slots of its sequence."""
    q = q.astype(np.float32)
    tokens, heads, _ = q.shape
    kv_heads, block = scores.kv_heads, scores.block
    keys = k.reshape(len(k), kv_heads, -1)
    values = keys[..., : scores.v_cols] if scores.v_cols else v.reshape(len(v), kv_heads, -1)
    y = np.zeros((tokens, heads, values.shape[-1]), np.float32)
    sees = [
        _seen(int(position), None if ends is None else int(ends[token]), scores)
        for token, position in enumerate(positions)
    ]
    owners = np.maximum(sequences, 0)
    known = {
        owner: _read((keys, values), [sees[t] for t in np.flatnonzero(owners == owner)], row, block)
        for owner, row in enumerate(table)
    }
    for token in range(tokens):
        position, seen = int(positions[token]), sees[token]
        if not len(seen):
            continue
        first, *cached = known[int(owners[token])]
        own = slice(seen[0] - first, seen[-1] - first + 1)
        seen_keys, seen_values = (a[own] for a in cached)
        query = q[token].reshape(kv_heads, heads // kv_heads, -1) * _factor(position, scores)
        products = np.matmul(query, seen_keys.transpose(1, 2, 0))
        if scores.softcap:
            products = scores.softcap * np.tanh(products / np.float32(scores.softcap))
        products = products + _by_distance(seen - position, heads, scores, bias).reshape(
            *products.shape[:2], -1
        )
        e = _softmax(products, sinks)
        y[token] = np.matmul(e, seen_values.swapaxes(0, 1)).reshape(heads, -1)
    return y


def _read(
    arrays: tuple[Array, Array], sees: list[Array], blocks: Array, block: int
) -> tuple[int, Array, Array]:
    """First position that tokens of a sequence see, and what is cached from there on, in f32."""
    first = min((int(seen[0]) for seen in sees if len(seen)), default=0)
    last = max((int(seen[-1]) for seen in sees if len(seen)), default=-1)
    positions = np.arange(first, last + 1)
    slots = blocks[positions // block] * block + positions % block
    keys, values = (a[slots].astype(np.float32) for a in arrays)
    return first, keys, values


def _seen(position: int, end: int | None, scores: Scores) -> Array:
    """Positions that a token sees, in their order."""
    last = position if end is None else end
    if position < 0:
        return np.arange(0)
    if not scores.causal:
        half = scores.symmetric_window // 2 if scores.symmetric_window else max(position, last)
        return np.arange(max(position - half, 0), min(last, position + half) + 1)
    first = max(position + 1 - scores.window, 0) if scores.window else 0
    if scores.chunk:
        first = max(first, position // scores.chunk * scores.chunk)
    return np.arange(first, max(position, last) + 1)


def _factor(position: int, scores: Scores) -> np.float32:
    """What a query is multiplied with."""
    heat = scores.temperature
    if heat is None:
        return np.float32(scores.scale)
    steps = (position + heat.offset) // heat.length
    return np.float32(scores.scale * (1 + heat.factor * np.log1p(steps)))


def _by_distance(apart: Array, heads: int, scores: Scores, bias: Array | None) -> Array:
    """What is added to scores of (heads, positions), so far from the token."""
    added = -alibi_slopes(heads, scores.alibi)[:, None] * np.abs(apart)
    if bias is None:
        return added.astype(np.float32)
    reach = bias.shape[1] // 2
    return (added + bias[:, np.clip(apart, -reach, reach) + reach]).astype(np.float32)


def alibi_slopes(heads: int, largest: float) -> Array:
    """Slopes of ALiBi, (heads,); zeros where `largest` is 0."""
    if not largest:
        return np.zeros(heads)
    whole = 1 << (heads.bit_length() - 1)
    exponents = [*range(2, 2 * whole + 1, 2), *range(1, 2 * whole, 2)][:heads]
    return np.exp2(-largest / (2 * whole) * np.array(exponents))


def _softmax(products: Array, sinks: Array | None) -> Array:
    """Softmax along the last axis, beside a further score of each head."""
    sink = np.float32(-np.inf) if sinks is None else sinks.reshape(*products.shape[:2], 1)
    largest = np.maximum(products.max(axis=-1, keepdims=True), sink)
    e = np.exp(products - largest)
    return e / (e.sum(axis=-1, keepdims=True) + np.exp(sink - largest))


@twin
@takes_f16
def paged_attention_splits(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    *,
    scores: Scores,
    splits: int,
    ends: Array | None = None,
    sinks: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Put the whole result into the first split; the others are empty."""
    operands = (q, k, v, positions, sequences, table)
    others = {"ends": ends, "sinks": sinks, "bias": bias}
    return in_first_split(paged_attention(*operands, scores=scores, **others), splits)


def in_first_split(whole: Array, splits: int) -> Array:
    """Result of (tokens, heads, cols) as attention in ranges leaves it, if the first has it all."""
    tokens, heads, cols = whole.shape
    y = np.zeros((tokens, heads, splits, cols + 4), np.float32)
    y[..., cols] = np.finfo(np.float32).min
    y[:, :, 0, :cols] = whole
    y[:, :, 0, cols : cols + 2] = (0.0, 1.0)
    return y


@twin
def attention_merge(x: Array) -> Array:
    """Join splits by their largest scores and totals."""
    cols = x.shape[-1] - 4
    factor = np.exp(x[..., cols] - x[..., cols].max(axis=-1, keepdims=True))
    total = (x[..., cols + 1] * factor).sum(axis=-1)
    return (x[..., :cols] * factor[..., None]).sum(axis=-2) / np.maximum(total, 1e-37)[..., None]


@twin
def attention_merge_q8(x: Array, *, planar: bool = False) -> Array:
    """Join splits, then round."""
    return q8_activations(attention_merge(x).reshape(len(x), -1), planar=planar)


@twin
def attention_merge_q16(x: Array) -> Array:
    """Join splits, then round to sixteen bits."""
    return q16_activations(attention_merge(x).reshape(len(x), -1))


@twin
def attention_merge_f16(x: Array, *, planar: bool = False, nibbles: bool = False) -> Array:
    """Join splits, then round to f16 by groups."""
    y = attention_merge(x).reshape(len(x), -1)
    return f16_activations(y, planar=planar, nibbles=nibbles)


@twin
@takes_f16
def paged_attention_q8(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    *,
    scores: Scores,
    ends: Array | None = None,
    sinks: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Attention, then rounding."""
    operands, others = (q, k, v, positions, sequences, table), (ends, sinks, bias)
    named = dict(zip(("ends", "sinks", "bias"), others, strict=True))
    y = paged_attention(*operands, scores=scores, **named)
    return q8_activations(y.reshape(len(y), -1))
