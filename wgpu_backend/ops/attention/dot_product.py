"""Attention as both interfaces call it: any layout, any format, long key ranges in parallel."""

from __future__ import annotations

from typing import Literal

from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Call, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.scaled import scaled_attention
from wgpu_backend.ops.attention.scaled_kernels import QUERIES
from wgpu_backend.ops.attention.splits import attention_merge, useful_splits
from wgpu_backend.ops.check import require, require_rank
from wgpu_backend.ops.moe.experts import mulmat_id
from wgpu_backend.ops.shape import creation
from wgpu_backend.ops.shape.copying import cast, contiguous
from wgpu_backend.ops.shape.views import expand, make_view, permute

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
    if cols % 4:
        return 1
    tiles = -(-tokens // QUERIES)
    return useful_splits(min(keys, window + QUERIES) if window else keys, batch * heads * tiles)


def _four_axes(node: Node, heads_first: bool, query: Node) -> Node:
    """View a node as (batch, tokens, heads, cols), with the values of a head next to each other."""
    rank = len(query.spec.shape)
    require_rank("attention", "key or value", node, rank, rank)
    if node.spec.dtype.quantised:
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
