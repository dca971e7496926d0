"""Attention over plain keys and values: the op, and the complete call of the interfaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import BOOL, F32, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Call, Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides
from wgpu_backend.ops import creation
from wgpu_backend.ops.check import (
    FLOATS,
    MAX_GROUPS,
    four,
    require,
    require_dtype,
    require_rank,
)
from wgpu_backend.ops.copying import cast, contiguous
from wgpu_backend.ops.experts import mulmat_id
from wgpu_backend.ops.op import op
from wgpu_backend.ops.views import expanded, permuted, viewed

MaskMode = Literal["", "none", "array", "causal"]
MASK_MODES = ("", "none", "array", "causal")
MAX_COLS = 2048  # of a head: its query has to fit into workgroup memory
QUERIES = 4  # tokens that share the keys a work group reads
LANE_VECTORS = 32  # sums, in vec4, that one lane may hold
QUERY_NBYTES = 12288  # workgroup memory for queries
QUERY_STEP = 16  # places in vec4: the fewer sizes there are, the fewer kernels are compiled


def select_queries(launch: Launch, capabilities: Capabilities) -> Launch:
    """Size the work group and the number of queries that it takes together."""
    q, v = launch.operands["q"].spec, launch.operands["v"].spec
    batch, tokens, heads, cols = q.shape
    width = 8 if capabilities.software else 64
    lane_quads = max(-(-v.shape[3] // (4 * width)), 1)
    quads = -(-cols // (4 * QUERY_STEP)) * QUERY_STEP
    fitting = min(LANE_VECTORS // lane_quads, QUERY_NBYTES // (16 * quads))
    queries = 1 if tokens == 1 or fitting < QUERIES else QUERIES
    return replace(
        launch,
        groups=(max(heads, 1), max(-(-tokens // queries), 1), max(batch, 1)),
        choices={
            **launch.choices,
            "WG": width,
            "QUERIES": queries,
            "LANE_QUADS": lane_quads,
            "K_QUADS": quads,
        },
    )


@op(select=select_queries, dense=("sinks",), trusted=True)
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
) -> Launch:
    """Attention of queries over keys and values, in f32; see `scaled_dot_product_attention`.

    Source: Vaswani et al. 2017, eq. 1; the online softmax is Milakov & Gimelshein 2018, alg. 3;
    queries in tiles as in Dao et al. 2022, "FlashAttention", alg. 1; sinks as in Xiao et al. 2023,
    eq. 2.

    Parameters
    ----------
    q : (batch, tokens, heads, k_cols), f32, f16 or bf16
    k : (batch, keys, kv_heads, k_cols), f32, f16 or bf16
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

    Returns
    -------
    (batch, tokens, heads, v_cols), f32
        Zeros for a token that sees nothing.
    """
    _require_heads(q, k, v)
    batch, tokens, heads, cols = q.spec.shape
    keys, kv_heads, v_cols = v.spec.shape[1:]
    _require_mask(mask, (batch, heads, tokens, keys))
    _require_sinks(sinks, heads)
    require(
        window >= 0 and softcap >= 0,
        ShapeError,
        f"attention: window is {window}, softcap is {softcap}, need 0 or more",
    )
    mask_strides = broadcast_strides(mask.spec, (batch, heads, tokens, keys)) if mask else ()
    out = Spec.dense((batch, tokens, heads, v_cols), F32)
    return Launch(
        out,
        {"q": q, "k": k, "v": v, "mask": mask or q, "sinks": sinks or q},
        groups=(heads, tokens, batch),
        params={
            "tokens": tokens if out.size else 0,
            "keys": keys,
            "heads": heads,
            "kv_heads": kv_heads,
            "k_cols": cols,
            "v_cols": v_cols,
            "k_quads": -(-cols // 4),
            "window": window,
            "scale": scale,
            "softcap": softcap,
            "mask_strides": four(mask_strides, 0),
        },
        choices={
            **_vectors("k", k),
            **_vectors("v", v),
            "TAIL": cols % 4 != 0,
            "MASKED": mask is not None,
            "TRUTHS": mask is not None and mask.spec.dtype == BOOL,
            "SINKS": sinks is not None,
            "CAUSAL": causal,
            "CAPPED": softcap > 0,
        },
        work=2 * batch * heads * tokens * keys * (cols + v_cols),
    )


def _vectors(name: str, node: Node) -> dict[str, str | int]:
    """Choices that read a node by vectors where all its heads begin at whole ones."""
    spec = node.spec
    whole = all(n % 4 == 0 for n in (spec.offset, spec.shape[3], *spec.strides[:3]))
    folder = "vec4" if whole else "load"
    return {name: f"{folder}/{spec.dtype}", f"{name.upper()}_SHIFT": 2 if whole else 0}


def _require_heads(q: Node, k: Node, v: Node) -> None:
    for name, node in (("query", q), ("key", k), ("value", v)):
        require_rank("attention", name, node, 4)
        require_dtype("attention", name, node, FLOATS)
        require(
            node.spec.strides[3] == 1 or node.spec.shape[3] == 1,
            ShapeError,
            f"attention: values of a {name} lie {node.spec.strides[3]} apart, need 1; "
            "call contiguous()",
        )
        cols = node.spec.shape[3]
        require(
            1 <= cols <= MAX_COLS,
            ShapeError,
            f"attention: a {name} has {cols} values, needs 1 to {MAX_COLS}",
        )
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


def _require_sinks(sinks: Node | None, heads: int) -> None:
    if sinks is None:
        return
    require_dtype("attention", "sinks", sinks, FLOATS)
    require(
        sinks.spec.shape == (heads,),
        ShapeError,
        f"attention: sinks is {sinks.spec.shape}, needs one for each of {heads} heads",
    )


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
    """Attention: ``softmax(scale * query @ key.T + mask) @ value`` for each head, in f32.

    This is the call of both interfaces. `ml` writes axes as (d, heads, tokens, batch), the
    contiguous one first, which is (batch, tokens, heads, d) here. `x/ml` has heads before tokens:
    say ``heads_first=True``, for operands and result alike.

    Parameters
    ----------
    query : (batch, tokens, heads, k_cols), f32, f16 or bf16
    key : (batch, keys, kv_heads, k_cols), any float or block format
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
    scale : float
    mask_mode : str or None
        ``"causal"`` hides keys behind a token, which are the last of the keys; no mask is made.
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
    )
    if vmla is not None:
        y = _up_projected(y, vmla)
    if heads_first:
        y = permuted(y, 0, 2, 1, 3)
    if len(query.spec.shape) == 4:
        return y
    return viewed(y, Spec(y.spec.shape[1:], F32, y.spec.strides[1:], y.spec.offset))


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


def _four_axes(node: Node, heads_first: bool, query: Node) -> Node:
    """Node as (batch, tokens, heads, cols) of plain neighbours."""
    rank = len(query.spec.shape)
    require_rank("attention", "key or value", node, rank, rank)
    if node.spec.dtype.quantised:
        node = cast(node, dtype=F32)
    spec = node.spec
    if rank == 3:
        node = viewed(node, Spec((1, *spec.shape), spec.dtype, (0, *spec.strides), spec.offset))
    if heads_first:
        node = permuted(node, 0, 2, 1, 3)
    return node if node.spec.strides[3] == 1 or node.spec.shape[3] == 1 else contiguous(node)


def _up_projected(y: Node, vmla: Node) -> Node:
    """Each head's values times its own matrix: heads are experts, and each chooses itself."""
    batch, tokens, heads, cols = y.spec.shape
    assert y.builder is not None
    call = Call(creation.arange, (), {"start": 0, "stop": heads, "dtype": I32})
    own = y.builder.add(call, creation.arange.record(start=0, stop=heads, dtype=I32))
    require_rank("attention", "vmla", vmla, 3, 3)
    require(
        vmla.spec.shape[0] == heads,
        ShapeError,
        f"attention: vmla is for {vmla.spec.shape[0]} heads, query has {heads}",
    )
    rows = viewed(y, Spec.dense((batch * tokens, heads, cols), F32))
    projected = mulmat_id(vmla, rows, expanded(own, (batch * tokens, heads)))
    return viewed(projected, Spec.dense((batch, tokens, heads, vmla.spec.shape[1]), F32))
