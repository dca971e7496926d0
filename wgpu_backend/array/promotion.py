"""Calls of ops by functions of arrays: constants of numbers, promotion of types, joining of axes.

Kernels take up to four axes. Neighbouring axes that every operand steps through as one are joined.
If more than four are left, operands are first copied in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.base import ArrayBase, constant, make_node, wrap
from wgpu_backend.array.conversion import MOST_AXES, convert
from wgpu_backend.array.session import Session
from wgpu_backend.array.types import FLOATING, Scalar, default_dtype, promote, promote_scalar
from wgpu_backend.dtypes import BOOL, COMPLEX64, F32, DType, as_dtype
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides, dense_strides
from wgpu_backend.ops.constants import as_array
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand, make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

Kernel = Callable[..., Node]


def as_node(name: str, x: object) -> Node:
    """Return the node of an array; DTypeError for any other object."""
    if isinstance(x, ArrayBase):
        return x.node
    raise DTypeError(f"{name}: got {type(x).__name__}, needs an array; wx.array makes one")


def to_floats(x: Node) -> Node:
    """Return a node of floats; integers and bools are converted to float32.

    Raises
    ------
    DTypeError
        Its values are complex: their imaginary parts would be lost.
    """
    if is_complex(x):
        raise DTypeError("an array of complex64, needs real numbers; take real, imag or abs")
    return x if x.spec.dtype in FLOATING else convert(x, F32)


# Functions of complex64, by the name of the function of real numbers. The package enters those of
# `complexes`, which imports this module.
COMPLEX: dict[str, Callable[..., Array]] = {}


def call_complex(name: str, *operands: Any) -> Array:
    """Call a function for complex64; DTypeError if it is undefined for complex numbers."""
    if name not in COMPLEX:
        raise DTypeError(f"{name}: complex64, needs real numbers; take real, imag or abs")
    return COMPLEX[name](*operands)


def promote_operands(name: str, *operands: Any) -> list[Node]:
    """Return nodes of one type for arrays, numbers, lists or NumPy's arrays.

    Raises
    ------
    DTypeError
        No type holds the values of all, or there is no array among them.
    """
    arrays = [o for o in operands if isinstance(o, ArrayBase)]
    if not arrays:
        # The first operand becomes an array of the default device.
        return promote_operands(name, wrap(make_node(operands[0])), *operands[1:])
    session = arrays[0].session
    kind = _together(operands)
    return [_operand(name, o, kind, session) for o in operands]


def _together(operands: Sequence[Any]) -> DType:
    kind: DType | None = None
    for other in operands:
        if not isinstance(other, Scalar):
            own = other.dtype if isinstance(other, ArrayBase) else _infer_dtype(other)
            kind = own if kind is None else promote(kind, own)
    assert kind is not None
    # Last: a Python number takes the type of all arrays together.
    for number in operands:
        if isinstance(number, Scalar):
            kind = promote_scalar(kind, number)
    return kind


def _infer_dtype(values: Any) -> DType:
    """Return the type of NumPy's values, or of lists of Python's numbers."""
    host = as_array("array", values)
    own = isinstance(values, np.ndarray | np.generic)
    return as_dtype(host.dtype) if own else default_dtype(host.dtype)


def _operand(name: str, value: Any, kind: DType, session: Session) -> Node:
    if isinstance(value, ArrayBase):
        return convert(value.node, kind)
    host = np.asarray(value)
    try:
        return constant(session, host, kind)
    except DTypeError as error:
        raise DTypeError(f"{name}: {error}") from None


def common_shape(name: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape that all broadcast to, by NumPy's rule."""
    rank = max(map(len, shapes))
    found: list[int] = []
    for axis in range(-rank, 0):
        extents = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(extents) > 1:
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"{name}: shapes {listed} do not broadcast, {sorted(extents)}")
        found.append(extents.pop() if extents else 1)
    return tuple(found)


def apply_op(op: Kernel, name: str, *nodes: Node, **options: Any) -> Array:
    """Apply an op to values that broadcast, with any number of axes."""
    return wrap(apply_to_nodes(op, name, *nodes, **options))


def apply_to_nodes(op: Kernel, name: str, *nodes: Node, **options: Any) -> Node:
    """Apply an op to nodes that broadcast; see `apply_op`."""
    if all(len(n.spec.shape) <= MOST_AXES for n in nodes):
        return op(*nodes, **options)
    shape = common_shape(name, [n.spec.shape for n in nodes])
    folded, views = fold(shape, nodes)
    return reshape_node(reshape_node(op(*views, **options), folded), shape)


def fold(shape: Shape, nodes: Sequence[Node]) -> tuple[Shape, list[Node]]:
    """Merge axes to at most four; return the merged shape, and the operands in it."""
    strides = [broadcast_strides(n.spec, shape) for n in nodes]
    extents, steps = _merge_axes(shape, strides)
    if len(extents) > MOST_AXES:
        # Dense operands step through all axes as one.
        whole = [write_out(n, shape) for n in nodes]
        extents, steps = _merge_axes(shape, [dense_strides(shape)] * len(nodes))
        nodes = whole
    specs = [
        Spec(extents, n.spec.dtype, own, n.spec.offset) for n, own in zip(nodes, steps, strict=True)
    ]
    return extents, [make_view(n, s) for n, s in zip(nodes, specs, strict=True)]


def write_out(x: Node, shape: Shape) -> Node:
    """Return a dense node with all values of a node that broadcasts."""
    if x.spec.shape == shape and x.spec.is_dense:
        return x
    return contiguous(expand(x, shape))


def _merge_axes(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Join axes that all operands step through as one; return extents and strides."""
    extents: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, extent in enumerate(shape):
        own = [s[axis] for s in strides]
        # Axes of one value need no stride.
        if extent == 1:
            continue
        # One step of the outer axis is `extent` steps of the inner one, for every operand.
        if extents and all(s[-1] == extent * o for s, o in zip(steps, own, strict=True)):
            extents[-1] *= extent
            for s, o in zip(steps, own, strict=True):
                s[-1] = o
        else:
            extents.append(extent)
            for s, o in zip(steps, own, strict=True):
                s.append(o)
    return tuple(extents), [tuple(s) for s in steps]


def split_around(x: Node, axis: int) -> tuple[Node, Shape, Shape]:
    """Return a node as (before, extent, after) an axis, and the shapes before and after."""
    shape = x.spec.shape
    before, after = shape[:axis], shape[axis + 1 :]
    three = reshape_node(x, (math.prod(before), shape[axis], math.prod(after)))
    return three, before, after


def normalise_axis(name: str, x: Node, axis: int) -> int:
    """Return an axis counted from the front; ShapeError if there is none."""
    return x.spec.axis(axis, name)


def is_bool(x: Node) -> bool:
    """Return whether values are true or false."""
    return x.spec.dtype == BOOL


def is_complex(x: Node) -> bool:
    """Return whether values have imaginary parts."""
    return x.spec.dtype == COMPLEX64
