"""NumPy twins of `wgpu_backend.ops.attention.paged`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.q8 import q8_activations
from wgpu_backend.cpu.twin import Array, takes_halves, twin
from wgpu_backend.ops.attention.paged import Scores


@twin
@takes_halves
def paged_attention(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    *,
    scores: Scores,
) -> Array:
    """Causal attention token by token over the slots of its sequence."""
    q = q.astype(np.float32)
    tokens, heads, _ = q.shape
    kv_heads, window, block = scores.kv_heads, scores.window, scores.block
    keys = k.reshape(len(k), kv_heads, -1)
    values = v.reshape(len(v), kv_heads, -1)
    y = np.zeros((tokens, heads, values.shape[-1]), np.float32)
    for token in range(tokens):
        end = int(positions[token]) + 1
        seen = np.arange(max(end - window, 0) if window else 0, end)
        if not len(seen):
            continue
        slots = table[max(int(sequences[token]), 0), seen // block] * block + seen % block
        grouped = q[token].reshape(kv_heads, heads // kv_heads, -1)
        seen_keys, seen_values = (a[slots].astype(np.float32) for a in (keys, values))
        products = np.einsum("hgd,nhd->hgn", grouped, seen_keys) * np.float32(scores.scale)
        if scores.softcap:
            products = scores.softcap * np.tanh(products / np.float32(scores.softcap))
        e = np.exp(products - products.max(axis=-1, keepdims=True))
        e /= e.sum(axis=-1, keepdims=True)
        y[token] = np.einsum("hgn,nhd->hgd", e, seen_values).reshape(heads, -1)
    return y


@twin
@takes_halves
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
) -> Array:
    """Put the whole result into the first split; the others are empty."""
    operands = (q, k, v, positions, sequences, table)
    return in_first_split(paged_attention(*operands, scores=scores), splits)


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
@takes_halves
def paged_attention_q8(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    *,
    scores: Scores,
) -> Array:
    """Attention, then rounding."""
    y = paged_attention(q, k, v, positions, sequences, table, scores=scores)
    return q8_activations(y.reshape(len(y), -1))
