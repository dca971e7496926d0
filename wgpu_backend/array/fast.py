"""Norms, rotary positions and attention in one kernel each: ``wx.fast``, as ``mx.fast`` is.

Computed in float32. Results have the type of the first operand; those of norms are promoted with
the weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.base import ArrayBase, constant, wrap
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.neural import as_rows, as_shape
from wgpu_backend.array.promotion import as_node, to_floats
from wgpu_backend.array.types import result_type
from wgpu_backend.dtypes import BOOL, F32, I32, DType
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.attention import dot_product, position
from wgpu_backend.ops.reduce import norm
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import permute

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

__all__ = ["layer_norm", "rms_norm", "rope", "scaled_dot_product_attention"]


def _parameter(name: str, x: Array | None) -> Node | None:
    return None if x is None else contiguous(convert(as_node(name, x), F32))


def _together(x: Node, *parameters: Array | None) -> DType:
    """Return the type that rows and parameters are promoted to."""
    return result_type(x.spec.dtype, *(p.dtype for p in parameters if p is not None))


def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-5) -> Array:
    """Scale rows to unit mean square, then by a weight (Zhang & Sennrich 2019, eq. 4).

    Parameters
    ----------
    x : (..., cols)
    weight : (cols,) or None
    eps : float
        Added to the mean square.
    """
    node = to_floats(as_node("rms_norm", x))
    y = norm.rms_norm(as_rows(node), _parameter("rms_norm", weight), eps=eps)
    return as_shape(y, node.spec.shape, _together(node, weight))


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    """Shift and scale rows to zero mean and unit variance (Ba et al. 2016, eq. 3).

    Parameters
    ----------
    x : (..., cols)
    weight, bias : (cols,) or None
    eps : float
        Added to the variance.
    """
    node = to_floats(as_node("layer_norm", x))
    parameters = [_parameter("layer_norm", p) for p in (weight, bias)]
    y = norm.layer_norm(as_rows(node), *parameters, eps=eps)
    return as_shape(y, node.spec.shape, _together(node, weight, bias))


def rope(
    x: Array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: Any,
    freqs: Array | None = None,
) -> Array:
    """Rotate pairs of values of a row by its position (Su et al. 2021, eq. 34).

    Parameters
    ----------
    x : (batch, ..., tokens, cols)
    dims : int
        Values that are rotated, an even number; others are kept.
    traditional : bool
        Pairs are neighbours; else halves of those that are rotated.
    base : float or None
        Of the frequencies; None with `freqs`.
    scale : float
        Of positions.
    offset : int, array of one, or (batch,) integers
        Position of the first token.
    freqs : (dims / 2,) or None
        Positions over which a pair rotates by one radian.
    """
    node = to_floats(as_node("rope", x))
    shape = node.spec.shape
    if len(shape) < 3 or dims % 2 or not 0 < dims <= shape[-1]:
        raise ShapeError(
            f"rope: x is {shape}, dims is {dims}, needs 3 axes or more, and an even dims up to "
            "the last extent"
        )
    if (base is None) == (freqs is None):
        given = "neither base nor freqs" if base is None else "both base and freqs"
        raise OptionError(f"rope: got {given}, needs one of them")
    batch, tokens, cols = shape[0], shape[-2], shape[-1]
    heads = math.prod(shape[1:-2])
    positions = _positions(node, offset, batch, tokens)
    table = position.rope_table(positions, _frequencies(node, dims, base, scale, freqs))
    # MLX has heads before tokens, the kernel tokens before heads: one row of the table a token.
    four = permute(reshape_node(node, (batch, heads, tokens, cols)), 0, 2, 1, 3)
    rows = contiguous(reshape_node(four, (batch * tokens, heads, cols)))
    # The kernel reads f32 and f16.
    rows = rows if rows.spec.dtype.name in ("f32", "f16") else convert(rows, F32)
    y = reshape_node(
        position.rope(rows, table, interleaved=traditional), (batch, tokens, heads, cols)
    )
    return as_shape(permute(y, 0, 2, 1, 3), shape, node.spec.dtype)


def _positions(x: Node, offset: Any, batch: int, tokens: int) -> Node:
    """Return the position of each token of each sequence, (batch * tokens,)."""
    session: Any = x.builder
    steps = np.arange(tokens, dtype=np.int32)
    # Positions that the host knows are a constant; those on the device stay there, so that a
    # compiled function may count tokens.
    if not isinstance(offset, ArrayBase):
        offset = np.asarray(offset)
        rows = np.broadcast_to(offset.reshape(-1, 1) + steps, (batch, tokens))
        return constant(session, rows.reshape(-1), I32)
    first = wrap(convert(offset.node, I32)).reshape(-1, 1)
    rows = first + wrap(constant(session, steps, I32))
    from wgpu_backend.array.manipulation import broadcast_to

    return contiguous(broadcast_to(rows, (batch, tokens)).reshape(-1).node)


def _frequencies(x: Node, dims: int, base: float | None, scale: float, freqs: Array | None) -> Node:
    """Return radians per position, (dims / 2,)."""
    session: Any = x.builder
    if freqs is not None:
        if freqs.size != dims // 2:
            raise ShapeError(f"rope: freqs is {freqs.shape}, {dims} dims need {dims // 2}")
        return contiguous((scale / wrap(convert(freqs.node, F32))).node)
    assert base is not None
    # In float64: errors of a frequency are multiplied by the position.
    frequencies = scale * base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    return constant(session, frequencies, F32)


def scaled_dot_product_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    mask: Any = None,
    sinks: Array | None = None,
    window: int = 0,
) -> Array:
    """Compute ``softmax(scale * q @ k.T + mask) @ v`` for each head.

    Parameters
    ----------
    q : (batch, heads, tokens, cols)
    k, v : (batch, kv_heads, keys, cols)
        `kv_heads` divides `heads`; neighbours share one.
    mask : None, ``"causal"``, or an array that broadcasts to (batch, heads, tokens, keys)
        Floats are added to scores; bools are true for keys that are seen.
    sinks : (heads,) or None
        Further score of each head, in the denominator alone.
    window : int
        A token sees so many keys before it, itself included; 0 sees all.
    """
    nodes = [to_floats(as_node("attention", x)) for x in (q, k, v)]
    if any(len(n.spec.shape) != 4 for n in nodes):
        raise ShapeError(f"attention: {q.shape}, {k.shape}, {v.shape}, needs four axes each")
    if isinstance(mask, str) and mask != "causal":
        raise OptionError(f"attention: mask is {mask!r}, needs 'causal', an array, or None")
    given = None if mask is None or isinstance(mask, str) else as_node("attention", mask)
    # Masks are added to scores, which are float32.
    if given is not None and given.spec.dtype != BOOL:
        given = convert(given, F32)
    y = dot_product.scaled_dot_product_attention(
        *(contiguous(n) for n in nodes),
        mask=given,
        sinks=_parameter("attention", sinks),
        scale=scale,
        mask_mode="causal" if isinstance(mask, str) else None,
        window=window,
        heads_first=True,
    )
    return wrap(convert(y, nodes[0].spec.dtype))
