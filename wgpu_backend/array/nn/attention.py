"""Attention, and rotary positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.core import wrap
from wgpu_backend.array.lifting import as_node
from wgpu_backend.array.nn.calls import as_floats
from wgpu_backend.array.nn.linear import Linear
from wgpu_backend.array.nn.module import Module
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.attention.dot_product import scaled_dot_product_attention
from wgpu_backend.ops.attention.position import rope
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import permute

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    mask: Array | None = None,
    causal: bool = False,
    heads: int | None = None,
) -> Array:
    """Attention of heads over keys and values, tokens before heads.

    Parameters
    ----------
    q : (n, tokens, heads, cols), or (n, tokens, heads * cols) with `heads`
    k, v : (n, keys, kv_heads, cols), or joined likewise; `kv_heads` divides `heads`
    scale : float or None
        Factor of scores; None is one over the square root of `cols`.
    mask : broadcasts to (n, heads, tokens, keys), or None
        Floats are added to scores, bool says what is seen.
    causal : bool
        A token sees no key behind it.
    heads : int or None
        In the last axis of all three, where they are joined.

    Returns
    -------
    (n, tokens, heads, cols), or joined where the operands are; float32.
    """
    parts = [q, k, v] if heads is None else [_apart(x, heads) for x in (q, k, v)]
    nodes = [_neighbours(as_floats("attend", x)) for x in parts]
    cols = nodes[0].spec.shape[-1]
    y = scaled_dot_product_attention(
        *nodes,
        mask=None if mask is None else as_node("attend", mask),
        scale=1 / math.sqrt(cols) if scale is None else scale,
        mask_mode="causal" if causal else None,
    )
    shape = y.spec.shape
    return wrap(y if heads is None else reshape_node(y, (*shape[:2], shape[2] * shape[3])))


def _apart(x: Array, heads: int) -> Array:
    if x.shape[-1] % heads:
        raise ShapeError(f"attend: rows of {x.shape[-1]} values, not a multiple of {heads} heads")
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def _neighbours(x: Node) -> Node:
    return x if x.spec.strides[-1] == 1 or x.spec.shape[-1] == 1 else contiguous(x)


class MultiHeadAttention(Module):
    """Attention with projections (Vaswani et al. 2017, §3.2.2).

    Parameters
    ----------
    dims : int
        Of queries, and of results unless `value_output_dims` says otherwise.
    num_heads : int
    query_input_dims, key_input_dims, value_input_dims, value_dims, value_output_dims : int or None
        None is `dims`, or for values' inputs the keys'.
    bias : bool
        Of all four projections.
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        query_input_dims: int | None = None,
        key_input_dims: int | None = None,
        value_input_dims: int | None = None,
        value_dims: int | None = None,
        value_output_dims: int | None = None,
        bias: bool = False,
    ) -> None:
        if dims % num_heads:
            raise ShapeError(
                f"MultiHeadAttention: {dims} dims, not a multiple of {num_heads} heads"
            )
        keys, inner = key_input_dims or dims, value_dims or dims
        self.query_proj = Linear(query_input_dims or dims, dims, bias)
        self.key_proj = Linear(keys, dims, bias)
        self.value_proj = Linear(value_input_dims or keys, inner, bias)
        self.out_proj = Linear(inner, value_output_dims or dims, bias)
        self.num_heads = num_heads

    def __call__(
        self, queries: Array, keys: Array, values: Array, mask: Array | None = None
    ) -> Array:
        """(n, tokens, dims), (n, keys, dims) twice, to (n, tokens, value_output_dims)."""
        q, k = self.query_proj(queries), self.key_proj(keys)
        y = attend(q, k, self.value_proj(values), mask=mask, heads=self.num_heads)
        return self.out_proj(y)

    @staticmethod
    def create_additive_causal_mask(length: int, dtype: Any = F32) -> Array:
        """(length, length): 0 where a token sees a key, -1e9 where it does not."""
        from wgpu_backend.array.arrays import Array

        hidden = np.triu(np.full((length, length), -1e9, np.float32), 1)
        return Array(hidden, dtype)


class RoPE(Module):
    """Rotary positions (Su et al. 2021, eq. 34) of the last axis.

    Parameters
    ----------
    dims : int
        Values that are rotated; others are kept.
    traditional : bool
        Pairs are neighbours; else halves.
    base : float
        Of the frequencies.
    scale : float
        Of positions.
    """

    def __init__(
        self, dims: int, traditional: bool = False, base: float = 10000, scale: float = 1.0
    ) -> None:
        self._dims, self._interleaved = dims, traditional
        self._frequencies = scale * base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)

    def __call__(self, x: Array, offset: int = 0) -> Array:
        """(..., tokens, cols) to the same, float32; `offset` is the first token's position."""
        from wgpu_backend.array.arrays import Array

        angles = np.outer(offset + np.arange(x.shape[-2]), self._frequencies)
        table = Array(np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32))
        return rotated_heads_first(x, table, interleaved=self._interleaved)


def rotated_heads_first(x: Array, table: Array, *, interleaved: bool) -> Array:
    """Rotate (..., tokens, cols) by a table (tokens, pairs, 2) of cosines and sines."""
    *leading, tokens, cols = x.shape
    heads = math.prod(leading)
    three = reshape_node(as_floats("rope", x), (heads, tokens, cols))
    turned = rope(permute(three, 1, 0, 2), as_node("rope", table), interleaved=interleaved)
    return wrap(reshape_node(contiguous(permute(turned, 1, 0, 2)), x.shape))


def rotated(x: Array, table: Array, *, interleaved: bool = False) -> Array:
    """Rotate (n, tokens, heads, cols) by a table (tokens, pairs, 2) of cosines and sines."""
    n, tokens, heads, cols = x.shape
    node = as_floats("rope", x)
    parts = [reshape_node(_row(node, i), (tokens, heads, cols)) for i in range(n)]
    turned = [rope(p, as_node("rope", table), interleaved=interleaved) for p in parts]
    from wgpu_backend.array.shaping import stack

    if n == 1:
        return wrap(reshape_node(turned[0], x.shape))
    return stack([wrap(t) for t in turned])


def _row(x: Node, index: int) -> Node:
    from wgpu_backend.graph.spec import slice_axis
    from wgpu_backend.ops.shape.views import make_view

    return make_view(x, slice_axis(x.spec, 0, index, index + 1))
