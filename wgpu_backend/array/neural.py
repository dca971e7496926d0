"""Functions of networks: softmax, activations, norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wgpu_backend.array.conversion import convert
from wgpu_backend.array.core import wrap
from wgpu_backend.array.elementwise import float_function
from wgpu_backend.array.lifting import as_node, to_floats
from wgpu_backend.array.reductions import Axis, normalise_axes
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ops.elementwise import activation
from wgpu_backend.ops.reduce import norm
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import permute

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

relu = float_function(activation.relu)
silu = float_function(activation.silu)
gelu = float_function(
    activation.gelu_erf, "gelu", "Return ``x · Φ(x)`` (Hendrycks & Gimpel 2016, eq. 1)."
)
gelu_approx = float_function(
    activation.gelu, "gelu_approx", "Return `gelu` approximated by a hyperbolic tangent."
)
softplus = float_function(activation.softplus)
relu_squared = float_function(activation.relu_squared)


def softmax(x: Array, /, axis: Axis = None, *, precise: bool = False) -> Array:
    """Exponentials over axes, all by default, divided by their sum.

    Computed in float32, whatever `precise` says; of the type of `x`, float32 for integers.
    """
    node = to_floats(as_node("softmax", x))
    axes = normalise_axes("softmax", node, axis)
    if not axes or not node.spec.size:
        return wrap(node) * 0 + 1
    rest = [a for a in range(len(node.spec.shape)) if a not in axes]
    order = [*rest, *axes]
    moved = permute(node, *order)
    count = 1
    for a in axes:
        count *= node.spec.shape[a]
    rows = contiguous(reshape_node(moved, (node.spec.size // count, count)))
    y = reshape_node(norm.softmax(rows), moved.spec.shape)
    back = [order.index(a) for a in range(len(order))]
    return wrap(convert(permute(y, *back), node.spec.dtype))


def as_rows(x: Node) -> Node:
    """A node as (rows, values of a row), each row's values neighbours."""
    cols = x.spec.shape[-1]
    rows = reshape_node(x, (x.spec.size // max(cols, 1), cols))
    return rows if rows.spec.strides[-1] == 1 or cols == 1 else contiguous(rows)


def as_shape(y: Node, shape: Shape, dtype: Any) -> Array:
    """Array of a node in the shape and type of what it was made of."""
    return wrap(convert(reshape_node(y, shape), dtype))


def glu(x: Array, /, axis: int = -1) -> Array:
    """First half of an axis times the sigmoid of its second half."""
    from wgpu_backend.array.elementwise import sigmoid
    from wgpu_backend.array.shaping import split

    value, gate = split(x, 2, axis)
    return value * sigmoid(gate)


def swiglu(gate: Array, x: Array, /) -> Array:
    """``silu(gate) · x``."""
    return silu(gate) * x


def geglu(gate: Array, x: Array, /) -> Array:
    """``gelu_approx(gate) · x``."""
    return gelu_approx(gate) * x


def logit_softcap(x: Array, cap: float, /) -> Array:
    """``cap · tanh(x / cap)``."""
    from wgpu_backend.array.elementwise import tanh

    return tanh(x / cap) * cap
