"""Attention over plain keys and values."""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.dtypes import BOOL, F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides
from wgpu_backend.ops.attention.scaled_kernels import select_tiles
from wgpu_backend.ops.attention.splits import in_first_split
from wgpu_backend.ops.check import (
    FLOATS,
    MAX_GROUPS,
    pad_to_4d,
    require,
    require_dtype,
    require_rank,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

MAX_COLS = 2048  # of a head: its query has to fit into workgroup memory
MAX_SPLITS = 256  # ranges of keys


@op(select=select_tiles, dense=("sinks",), trusted=True)
def scaled_attention(
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None = None,
    sinks: Node | None = None,
    *,
    scale: float,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    splits: int = 1,
) -> Launch:
    """Attend to plain keys and values, in f32; see `scaled_dot_product_attention`.

    Source: Vaswani et al. 2017, eq. 1; the online softmax is Milakov & Gimelshein 2018, alg. 3;
    queries in tiles as in Dao et al. 2022, "FlashAttention", alg. 1; sinks as in Xiao et al. 2023,
    eq. 2.

    Parameters
    ----------
    q : (batch, tokens, heads, k_cols)
        f32, f16 or bf16.
    k : (batch, keys, kv_heads, k_cols)
        f32, f16 or bf16.
    v : (batch, keys, kv_heads, v_cols), f32, f16 or bf16
        Of all three, values of a head are neighbours.
    mask : (..., tokens, keys) or None
        Broadcasts to (batch, heads, tokens, keys). Floats are added to scores; bool says what is
        seen.
    sinks : (heads,) or None
        Further score of each head, which has no value.
    scale : float
        Factor of every score.
    causal : bool
        A token sees keys up to its own; tokens are the last of the keys.
    window : int
        A token sees this many keys before it, itself included; 0 sees all.
    softcap : float
        Scores become ``softcap * tanh(score / softcap)``; 0 leaves them.
    splits : int
        Ranges of keys, with a work group each.

    Returns
    -------
    (batch, tokens, heads, v_cols), f32
        Zeros for a token that sees nothing. With several splits (batch * tokens, heads, splits,
        v_cols + 4), for `attention_merge`; `v_cols` is a multiple of 4 then.
    """
    _require_heads(q, k, v)
    (batch, tokens, heads, cols), (_, keys, _, v_cols) = q.spec.shape, v.spec.shape
    scores = (batch, heads, tokens, keys)
    _require_mask(mask, scores)
    _require_sinks(sinks, heads)
    _require_positive(window, softcap)
    _require_splits(splits, v_cols)
    out = _result(q, v, splits)
    return Launch(
        out,
        {"q": q, "k": k, "v": v, **_optional(q, mask, sinks)},
        groups=(heads, tokens, batch),
        params={
            **_extents(q, v, out),
            "window": window,
            "scale": scale,
            "softcap": softcap,
            "splits": splits,
            "mask_strides": pad_to_4d(
                () if mask is None else broadcast_strides(mask.spec, scores), 0
            ),
        },
        choices={**_presence(mask, sinks), "CAUSAL": causal, "CAPPED": softcap > 0},
        work=2 * math.prod(scores) * (cols + v_cols),
    )


@scaled_attention.reference
def scaled_attention_reference(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    sinks: Array | None = None,
    *,
    scale: float,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    splits: int = 1,
) -> Array:
    """Attend with all scores at once."""
    heads, repeats = q.shape[2], q.shape[2] // k.shape[2]
    keys, values = np.repeat(k, repeats, axis=2), np.repeat(v, repeats, axis=2)
    scores = np.einsum("bthd,bshd->bhts", q * np.float32(scale), keys)
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    seen = np.broadcast_to(_seen(q.shape[1], k.shape[1], causal, window), scores.shape)
    if mask is not None and mask.dtype == np.bool_:
        seen = seen & mask
    elif mask is not None:
        seen, scores = seen & ~np.isneginf(mask), scores + mask
    scores = np.where(seen, scores, np.float32(-np.inf))
    sink = np.full(heads, -np.inf, np.float32) if sinks is None else sinks
    sink = sink[:, None, None]
    largest = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    largest = np.where(np.isneginf(largest), np.float32(0), largest)
    e = np.exp(scores - largest)
    total = e.sum(axis=-1, keepdims=True) + np.exp(sink - largest)
    e = np.divide(e, total, out=np.zeros_like(e), where=total != 0)
    y = np.einsum("bhts,bshd->bthd", e, values)
    rows = (y.shape[0] * y.shape[1], *y.shape[2:])
    return y if splits == 1 else in_first_split(y.reshape(rows), splits)


def _result(q: Node, v: Node, splits: int) -> Spec:
    """Return the result's spec; of several splits, sums with a largest score and a total."""
    (batch, tokens, heads, _), v_cols = q.spec.shape, v.spec.shape[3]
    if splits == 1:
        return Spec.dense((batch, tokens, heads, v_cols), F32)
    return Spec.dense((batch * tokens, heads, splits, v_cols + 4), F32)


def _optional(q: Node, mask: Node | None, sinks: Node | None) -> dict[str, Node]:
    """Return the optional operands: kernels have a binding for each, choices say which are read."""
    return {"mask": q if mask is None else mask, "sinks": q if sinks is None else sinks}


def _presence(mask: Node | None, sinks: Node | None) -> dict[str, bool]:
    """Return the choices that say which operands are present."""
    return {
        "MASKED": mask is not None,
        "TRUTHS": mask is not None and mask.spec.dtype == BOOL,
        "SINKS": sinks is not None,
    }


def _extents(q: Node, v: Node, out: Spec) -> dict[str, int]:
    """Return the size parameters of a kernel; zero tokens where the result is empty."""
    _, tokens, heads, cols = q.spec.shape
    _, keys, kv_heads, v_cols = v.spec.shape
    tokens = tokens if out.size else 0
    return {
        "tokens": tokens,
        "keys": keys,
        "heads": heads,
        "group": heads // kv_heads,
        "rows": tokens * heads // kv_heads,
        "step": 1,
        "k_cols": cols,
        "v_cols": v_cols,
        "k_vec4s": -(-cols // 4),
        "v_vec4s": -(-v_cols // 4),
    }


def _require_values(name: str, node: Node) -> None:
    """Check that heads of an operand are rows of neighbouring values, of 1 to 2,048 values."""
    require_rank("attention", name, node, 4)
    require_dtype("attention", name, node, FLOATS)
    cols, stride = node.spec.shape[3], node.spec.strides[3]
    require(
        stride == 1 or cols == 1,
        ShapeError,
        f"attention: values of a {name} lie {stride} apart, need 1; call contiguous()",
    )
    require(
        1 <= cols <= MAX_COLS,
        ShapeError,
        f"attention: a {name} has {cols} values, needs 1 to {MAX_COLS}",
    )


def _require_heads(q: Node, k: Node, v: Node) -> None:
    for name, node in (("query", q), ("key", k), ("value", v)):
        _require_values(name, node)
    (batch, tokens, heads, cols), kv = q.spec.shape, k.spec.shape
    require(kv[3] == cols, ShapeError, f"attention: a query has {cols} values, a key has {kv[3]}")
    require(
        kv[:3] == v.spec.shape[:3] and kv[0] == batch,
        ShapeError,
        f"attention: query is {q.spec.shape}, key {kv}, value {v.spec.shape}; needs one batch, and "
        "as many values as keys",
    )
    require(
        kv[2] > 0 and heads % kv[2] == 0,
        ShapeError,
        f"attention: {heads} query heads, not a multiple of {kv[2]} key heads",
    )
    require(
        max(heads, tokens, batch) <= MAX_GROUPS,
        ShapeError,
        f"attention: query is {q.spec.shape}, needs at most {MAX_GROUPS} of each; cut it",
    )


def _require_mask(mask: Node | None, wanted: Shape) -> None:
    if mask is None:
        return
    require_dtype("attention", "mask", mask, (*FLOATS, BOOL))
    have = (1,) * (4 - len(mask.spec.shape)) + mask.spec.shape
    require(
        len(have) == 4 and all(n in (1, m) for n, m in zip(have, wanted, strict=True)),
        ShapeError,
        f"attention: mask is {mask.spec.shape}, needs what broadcasts to {wanted}",
    )


def _require_positive(window: int, softcap: float) -> None:
    require(
        window >= 0 and softcap >= 0,
        ShapeError,
        f"attention: window is {window}, softcap is {softcap}, need 0 or more",
    )


def _require_splits(splits: int, v_cols: int) -> None:
    require(
        splits == 1 or (1 < splits <= MAX_SPLITS and v_cols % 4 == 0),
        ShapeError,
        f"attention: {splits} splits of heads of {v_cols} values, needs 1, or up to {MAX_SPLITS} "
        "where heads are multiples of 4",
    )


def _require_sinks(sinks: Node | None, heads: int) -> None:
    if sinks is None:
        return
    require_dtype("attention", "sinks", sinks, FLOATS)
    require(
        sinks.spec.shape == (heads,),
        ShapeError,
        f"attention: sinks is {sinks.spec.shape}, needs one for each of {heads} heads",
    )


def _seen(tokens: int, keys: int, causal: bool, window: int) -> Array:
    own = np.arange(tokens)[:, None] + keys - tokens
    key = np.arange(keys)
    seen = np.ones((tokens, keys), np.bool_)
    if causal:
        seen &= key <= own
    if window:
        seen &= key > own - window
    return seen
