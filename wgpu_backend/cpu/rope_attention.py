"""NumPy twin of `wgpu_backend.ops.attention.rope_attention`."""

from __future__ import annotations

from wgpu_backend.cpu.attention import in_first_split, paged_attention, paged_attention_q8
from wgpu_backend.cpu.normalization import rms_norm
from wgpu_backend.cpu.rope_put import rope_put
from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.attention.paged import Scores


@twin
def rope_attention(
    q: Array,
    key: Array,
    value: Array,
    angles: Array,
    slot: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    query_norm: Array | None = None,
    key_norm: Array | None = None,
    *,
    interleaved: bool,
    scores: Scores,
    eps: float = 0.0,
    sinks: Array | None = None,
    rounds: bool = False,
) -> Array:
    """Norms of heads, `rope_put`, and attention to what it leaves in the cache."""
    if query_norm is not None:
        q[...] = rms_norm(q, query_norm, eps=eps)
        key = rms_norm(key, key_norm, eps=eps)
    q[...] = rope_put(q, key, value, angles, slot, k, v, interleaved=interleaved)
    attend = paged_attention_q8 if rounds else paged_attention
    return attend(q, k, v, positions, sequences, table, scores=scores, sinks=sinks)


@twin
def rope_attention_splits(
    q: Array,
    key: Array,
    value: Array,
    angles: Array,
    slot: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    query_norm: Array | None = None,
    key_norm: Array | None = None,
    *,
    interleaved: bool,
    scores: Scores,
    splits: int,
    eps: float = 0.0,
    sinks: Array | None = None,
) -> Array:
    """`rope_attention`, all of it in the first split."""
    new, places = (q, key, value, angles, slot, k, v), (positions, sequences, table)
    norms = (query_norm, key_norm)
    how = {"interleaved": interleaved, "scores": scores, "eps": eps, "sinks": sinks}
    whole = rope_attention(*new, *places, *norms, **how)
    return in_first_split(whole, splits)
