"""Attention over plain keys and values: any layout, any format, long key ranges in parallel."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from wgpu_backend.dtypes import BOOL, F32, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Call, Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides
from wgpu_backend.ops.attention.scaled_kernels import QUERIES, select_tiles
from wgpu_backend.ops.attention.splits import attention_merge, in_first_split, useful_splits
from wgpu_backend.ops.check import (
    FLOATS,
    MAX_GROUPS,
    pad_to_4d,
    require,
    require_dtype,
    require_rank,
)
from wgpu_backend.ops.moe.experts import mulmat_id
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape import creation
from wgpu_backend.ops.shape.copying import cast, contiguous
from wgpu_backend.ops.shape.views import expand, make_view, permute

# Values of a head: its query has to fit into workgroup memory.
MAX_COLS = 2048
# Ranges of keys. Each adds sums that the merge has to read.
MAX_SPLITS = 256


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
    f16: bool = False,
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
    f16 : bool
        Round operands and weights to f16, and add up few products in f16. Fusion rules set it.

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
        attributes="f16" if f16 else None,
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
    f16: bool = False,
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
        # A -inf in a mask of floats hides a key, as false does in a mask of truth values.
        seen, scores = seen & ~np.isneginf(mask), scores + mask
    scores = np.where(seen, scores, np.float32(-np.inf))
    sink = np.full(heads, -np.inf, np.float32) if sinks is None else sinks
    sink = sink[:, None, None]
    largest = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    # A row that sees nothing: -inf less -inf would be NaN. Its result is zero, as on devices.
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
    # Four more values: the largest score, the total, and two that fill up the vector.
    return Spec.dense((batch * tokens, heads, splits, v_cols + 4), F32)


def _optional(q: Node, mask: Node | None, sinks: Node | None) -> dict[str, Node]:
    """Return the optional operands: a kernel binds them all, its choices select those to read."""
    return {"mask": q if mask is None else mask, "sinks": q if sinks is None else sinks}


def _presence(mask: Node | None, sinks: Node | None) -> dict[str, bool]:
    """Return the shader choices for which operands are present."""
    return {
        "MASKED": mask is not None,
        "TRUTHS": mask is not None and mask.spec.dtype == BOOL,
        "SINKS": sinks is not None,
    }


def _extents(q: Node, v: Node, out: Spec) -> dict[str, int]:
    """Return the size parameters of a kernel; zero tokens where the result is empty."""
    _, tokens, heads, cols = q.spec.shape
    _, keys, kv_heads, v_cols = v.spec.shape
    # An empty result still dispatches, and its threads must store nothing.
    tokens = tokens if out.size else 0
    return {
        "tokens": tokens,
        "keys": keys,
        "heads": heads,
        "group": heads // kv_heads,
        "rows": tokens * heads // kv_heads,
        # Kernels that take several keys at once change it.
        "step": 1,
        "k_cols": cols,
        "v_cols": v_cols,
        "k_vec4s": -(-cols // 4),
        "v_vec4s": -(-v_cols // 4),
    }


def _require_values(name: str, node: Node) -> None:
    """Check that each head of an operand is contiguous and has 1 to 2,048 values."""
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
    # Queries are the last tokens of the keys, as with a cache.
    own = np.arange(tokens)[:, None] + keys - tokens
    key = np.arange(keys)
    seen = np.ones((tokens, keys), np.bool_)
    if causal:
        seen &= key <= own
    if window:
        seen &= key > own - window
    return seen


MaskMode = Literal["", "none", "array", "causal"]
MASK_MODES = ("", "none", "array", "causal")


def scaled_dot_product_attention(
    query: Node,
    key: Node,
    value: Node,
    mask: Node | None = None,
    sinks: Node | None = None,
    vmla: Node | None = None,
    *,
    scale: float,
    mask_mode: MaskMode | None = None,
    window: int = 0,
    softcap: float = 0.0,
    heads_first: bool = False,
    cache_config_applied: bool = True,
) -> Node:
    """Compute ``softmax(scale * query @ key.T + mask) @ value`` for each head, in f32.

    This is the call of both interfaces. `ml` writes axes as (d, heads, tokens, batch), the
    contiguous one first, which is (batch, tokens, heads, d) here. `x/ml` has heads before tokens:
    say ``heads_first=True``, for operands and result alike.

    Parameters
    ----------
    query : (batch, tokens, heads, k_cols)
        f32, f16 or bf16.
    key : (batch, keys, kv_heads, k_cols)
        Any float or block format.
    value : (batch, keys, kv_heads, v_cols), any float or block format
        The batch axis may be missing from all three. `kv_heads` divides `heads`; neighbours share
        one. Heads may have 1 to 2,048 values.
    mask : (..., tokens, keys) or None
        Broadcasts over batch and heads. Floats are added to scores, minus infinity hides; bool says
        what is seen.
    sinks : (heads,) or None
        Further score of each head, in the denominator alone.
    vmla : (heads, cols, v_cols) or None
        Multiplied with each head's result, as multi-head latent attention has it; any format.
    mask_mode : str or None
        ``"causal"`` hides keys after a token, which are the last of the keys; no mask is made.
        ``"array"`` demands `mask`, ``""`` or ``"none"`` demands none. None is what `mask` says.
    window : int
        A token sees this many keys before it, itself included; 0 sees all.
    softcap : float
        Scores become ``softcap * tanh(score / softcap)`` before the mask; 0 leaves them.
    heads_first : bool
        Axes are (batch, heads, tokens, d).
    cache_config_applied : bool
        Of `ml`'s signature; operands are taken as they are in either case, so it changes nothing.

    Returns
    -------
    (batch, tokens, heads, v_cols), f32
        With `vmla` (batch, tokens, heads, cols). Zeros for a token that sees nothing.

    Raises
    ------
    ShapeError
        Shapes do not fit each other, or `mask_mode` contradicts `mask`.
    """
    _require_mode(mask_mode, mask)
    require_rank("attention", "query", query, 3)
    q, k, v = (_four_axes(n, heads_first, query) for n in (query, key, value))
    splits = _splits(q, v, window)
    y = scaled_attention(
        q,
        k,
        v,
        mask,
        sinks,
        scale=scale,
        causal=mask_mode == "causal",
        window=window,
        softcap=softcap,
        splits=splits,
    )
    if splits > 1:
        y = _merge_splits(y, q, v)
    if vmla is not None:
        y = _up_projected(y, vmla)
    return _restore_axes(query, y, heads_first)


def _require_mode(mode: str | None, mask: Node | None) -> None:
    require(
        mode is None or mode in MASK_MODES,
        DTypeError,
        f"attention: mask_mode is {mode!r}, needs one of {', '.join(map(repr, MASK_MODES))}",
    )
    if mode == "array":
        require(mask is not None, ShapeError, "attention: mask_mode is 'array', needs a mask")
    if mode in ("", "none"):
        require(mask is None, ShapeError, f"attention: mask_mode is {mode!r}, needs no mask")


def _splits(q: Node, v: Node, window: int) -> int:
    """Return how many key ranges keep a device busy; 1 where vectors cannot merge results."""
    (batch, tokens, heads, _), (_, keys, _, cols) = q.spec.shape, v.spec.shape
    # `attention_merge` works on vectors of four.
    if cols % 4:
        return 1
    tiles = -(-tokens // QUERIES)
    # A window hides all earlier keys from a tile of queries.
    return useful_splits(min(keys, window + QUERIES) if window else keys, batch * heads * tiles)


def _four_axes(node: Node, heads_first: bool, query: Node) -> Node:
    """View a node as (batch, tokens, heads, cols), with the values of a head next to each other."""
    rank = len(query.spec.shape)
    require_rank("attention", "key or value", node, rank, rank)
    if node.spec.dtype.quantised:
        # Kernels read keys of plain types only.
        node = cast(node, dtype=F32)
    spec = node.spec
    if rank == 3:
        node = make_view(node, Spec((1, *spec.shape), spec.dtype, (0, *spec.strides), spec.offset))
    if heads_first:
        node = permute(node, 0, 2, 1, 3)
    return node if node.spec.strides[3] == 1 or node.spec.shape[3] == 1 else contiguous(node)


def _merge_splits(parts: Node, q: Node, v: Node) -> Node:
    """Merge the results of all key ranges."""
    return make_view(attention_merge(parts), Spec.dense((*q.spec.shape[:3], v.spec.shape[3]), F32))


def _restore_axes(query: Node, y: Node, heads_first: bool) -> Node:
    """Give a result of four axes the axis order of the query, and its batch axis if it has one."""
    if heads_first:
        y = permute(y, 0, 2, 1, 3)
    if len(query.spec.shape) == 4:
        return y
    return make_view(y, Spec(y.spec.shape[1:], F32, y.spec.strides[1:], y.spec.offset))


def _up_projected(y: Node, vmla: Node) -> Node:
    """Multiply each head by its own matrix: heads act as experts, and each chooses itself."""
    batch, tokens, heads, cols = y.spec.shape
    assert y.builder is not None
    call = Call(creation.arange, (), {"start": 0, "stop": heads, "dtype": I32})
    # `arange` has no operands, so the builder is given.
    own = y.builder.add(call, creation.arange.record(start=0, stop=heads, dtype=I32))
    require_rank("attention", "vmla", vmla, 3, 3)
    require(
        vmla.spec.shape[0] == heads,
        ShapeError,
        f"attention: vmla is for {vmla.spec.shape[0]} heads, query has {heads}",
    )
    rows = make_view(y, Spec.dense((batch * tokens, heads, cols), F32))
    projected = mulmat_id(vmla, rows, expand(own, (batch * tokens, heads)))
    return make_view(projected, Spec.dense((batch, tokens, heads, vmla.spec.shape[1]), F32))
