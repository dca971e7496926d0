"""Functions of neural networks: activations, softmax and convolutions.

Convolutions take channels-last arrays; weights are (outputs, kernel..., channels / groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.elementwise import float_function
from wgpu_backend.array.promotion import as_node, promote_operands, to_floats
from wgpu_backend.array.reductions import Axis, normalise_axes
from wgpu_backend.array.types import FLOATING
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ops.conv import convolution, transposed
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
    """Divide exponentials over axes, all by default, by their sum.

    Computed in float32 in any case, so `precise` changes nothing. The result has the type of `x`,
    float32 for integers.
    """
    node = to_floats(as_node("softmax", x))
    axes = normalise_axes("softmax", node, axis)
    # One value alone is its own sum: its softmax is 1.
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
    # The inverse of the permutation.
    back = [order.index(a) for a in range(len(order))]
    return wrap(convert(permute(y, *back), node.spec.dtype))


def as_rows(x: Node) -> Node:
    """Return a node as (rows, values of a row), each row contiguous."""
    cols = x.spec.shape[-1]
    rows = reshape_node(x, (x.spec.size // max(cols, 1), cols))
    return rows if rows.spec.strides[-1] == 1 or cols == 1 else contiguous(rows)


def as_shape(y: Node, shape: Shape, dtype: Any) -> Array:
    """Return an array of a node in another shape and type."""
    return wrap(convert(reshape_node(y, shape), dtype))


def glu(x: Array, /, axis: int = -1) -> Array:
    """Multiply the first half of an axis by the sigmoid of its second half."""
    from wgpu_backend.array.elementwise import sigmoid
    from wgpu_backend.array.manipulation import split

    value, gate = split(x, 2, axis)
    return value * sigmoid(gate)


def swiglu(gate: Array, x: Array, /) -> Array:
    """Return ``silu(gate) · x``."""
    return silu(gate) * x


def geglu(gate: Array, x: Array, /) -> Array:
    """Return ``gelu_approx(gate) · x``."""
    return gelu_approx(gate) * x


def logit_softcap(x: Array, cap: float, /) -> Array:
    """Return ``cap · tanh(x / cap)``."""
    from wgpu_backend.array.elementwise import tanh

    return tanh(x / cap) * cap


Counts = int | Sequence[int]


def _operands(name: str, x: Array, weight: Array, axes: int) -> tuple[Node, Node]:
    left, right = promote_operands(name, x, weight)
    if left.spec.dtype not in FLOATING:
        raise DTypeError(f"{name}: {left.spec.dtype}, needs floats")
    for what, node in (("input", left), ("weight", right)):
        if len(node.spec.shape) != axes + 2:
            raise ShapeError(f"{name}: {what} is {node.spec.shape}, needs {axes + 2} axes")
    return left, right


def _each(value: Any, axes: int) -> tuple[Any, ...]:
    """Return a number for each axis; a single number counts for every axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value)


def _convolve(name: str, axes: int, x: Array, weight: Array, groups: int, *options: Any) -> Array:
    left, right = _operands(name, x, weight, axes)
    strides, paddings, dilations = (_each(o, axes) for o in options)
    y = convolution.over(left, right, strides, paddings, dilations, groups)
    return wrap(convert(y, left.spec.dtype))


def conv1d(
    input: Array,
    weight: Array,
    /,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Array:
    """Convolve (n, length, channels); see `conv_general`."""
    return _convolve("conv1d", 1, input, weight, groups, stride, padding, dilation)


def conv2d(
    input: Array,
    weight: Array,
    /,
    stride: Counts = 1,
    padding: Any = 0,
    dilation: Counts = 1,
    groups: int = 1,
) -> Array:
    """Convolve (n, height, width, channels); see `conv_general`."""
    return _convolve("conv2d", 2, input, weight, groups, stride, padding, dilation)


def conv3d(
    input: Array,
    weight: Array,
    /,
    stride: Counts = 1,
    padding: Any = 0,
    dilation: Counts = 1,
    groups: int = 1,
) -> Array:
    """Convolve (n, depth, height, width, channels); see `conv_general`."""
    return _convolve("conv3d", 3, input, weight, groups, stride, padding, dilation)


def depthwise_conv1d(
    input: Array, weight: Array, /, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Array:
    """Convolve each channel of (n, length, channels) with its own kernel.

    Parameters
    ----------
    input : (n, length, channels)
    weight : (channels, kernel) or (channels, kernel, 1)
    """
    kernel = weight.reshape(*weight.shape, 1) if weight.ndim == 2 else weight
    return conv1d(input, kernel, stride, padding, dilation, input.shape[-1])


def conv_general(
    input: Array,
    weight: Array,
    /,
    stride: Counts = 1,
    padding: Any = 0,
    kernel_dilation: Counts = 1,
    input_dilation: Counts = 1,
    groups: int = 1,
    flip: bool = False,
) -> Array:
    """Convolve over one to three axes; sums are in float32.

    Parameters
    ----------
    input : (n, ..., channels), floats
    weight : (outputs, ..., channels / groups), floats
    stride, kernel_dilation, input_dilation : int, or one for each axis
        The last is the distance of values, with zeros between them.
    padding : int, one for each axis, or two sequences
        Zeros on both sides, or those before and those after each axis.
    groups : int
        Each part of the outputs sees its part of the channels.
    flip : bool
        The last tap of the kernel comes first.

    Returns
    -------
    (n, ..., outputs), of the type both are promoted to
    """
    axes = input.ndim - 2
    if not 1 <= axes <= 3:
        raise ShapeError(f"conv_general: input is {input.shape}, needs 3 to 5 axes")
    left, right = _operands("conv_general", input, weight, axes)
    # The kernel has three axes: leading axes of 1 make a row or an image a volume.
    missing, ones = 3 - axes, (1,) * (3 - axes)
    y = convolution.convolve(
        convolution.with_axes(left, missing),
        convolution.with_axes(right, missing),
        strides=(*ones, *_each(stride, axes)),
        paddings=(*(0,) * missing, *_sides(padding, axes)),
        dilations=(*ones, *_each(kernel_dilation, axes)),
        groups=groups,
        spread=(*ones, *_each(input_dilation, axes)),
        flipped=flip,
    )
    return wrap(convert(convolution.without_axes(y, missing), left.spec.dtype))


def _sides(padding: Any, axes: int) -> tuple[Any, ...]:
    if not isinstance(padding, int) and padding and not isinstance(padding[0], int):
        before, after = (_each(side if len(side) > 1 else side[0], axes) for side in padding)
        return tuple(zip(before, after, strict=True))
    return _each(padding, axes)


def _convolve_transposed(
    op: Any, name: str, axes: int, x: Array, weight: Array, groups: int, *options: Any
) -> Array:
    left, right = _operands(name, x, weight, axes)
    given = options if axes == 1 else [_each(o, axes) for o in options]
    return wrap(convert(op(left, right, *given, groups), left.spec.dtype))


def conv_transpose1d(
    input: Array,
    weight: Array,
    /,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    output_padding: int = 0,
    groups: int = 1,
) -> Array:
    """Compute the transposed convolution of (n, length, channels): the gradient of `conv1d`."""
    options = stride, padding, dilation, output_padding
    op = transposed.conv_transpose1d
    return _convolve_transposed(op, "conv_transpose1d", 1, input, weight, groups, *options)


def conv_transpose2d(
    input: Array,
    weight: Array,
    /,
    stride: Counts = 1,
    padding: Counts = 0,
    dilation: Counts = 1,
    output_padding: Counts = 0,
    groups: int = 1,
) -> Array:
    """Compute the transposed convolution of (n, height, width, channels)."""
    options = stride, padding, dilation, output_padding
    op = transposed.conv_transpose2d
    return _convolve_transposed(op, "conv_transpose2d", 2, input, weight, groups, *options)


def conv_transpose3d(
    input: Array,
    weight: Array,
    /,
    stride: Counts = 1,
    padding: Counts = 0,
    dilation: Counts = 1,
    output_padding: Counts = 0,
    groups: int = 1,
) -> Array:
    """Compute the transposed convolution of (n, depth, height, width, channels)."""
    options = stride, padding, dilation, output_padding
    op = transposed.conv_transpose3d
    return _convolve_transposed(op, "conv_transpose3d", 3, input, weight, groups, *options)


def convolve(a: Array, v: Array, /, mode: str = "full") -> Array:
    """Convolve two rows, as ``numpy.convolve``.

    Parameters
    ----------
    a, v : (n,) and (m,), floats
    mode : str
        ``full``: n + m - 1 values; ``same``: as many as the longer has; ``valid``: where both
        overlap whole.
    """
    # A convolution is symmetric; the kernel is the shorter row.
    long, short = (a, v) if a.size >= v.size else (v, a)
    m = short.size
    margins = {"full": (m - 1, m - 1), "same": (m // 2, m - 1 - m // 2), "valid": (0, 0)}
    if mode not in margins or long.ndim != 1 or short.ndim != 1 or not m:
        raise OptionError(
            f"convolve: {a.shape}, {v.shape}, mode {mode!r}; needs two rows and one of {[*margins]}"
        )
    before, after = margins[mode]
    # `flip`: the layers correlate, a convolution reverses the kernel.
    y = conv_general(
        long.reshape(1, -1, 1), short.reshape(1, -1, 1), padding=([before], [after]), flip=True
    )
    return y.reshape(-1)
