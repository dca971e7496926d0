"""Ops that change a tensor's shape: pad, pad_ext, repeat, repeat_4d, stack, as_strided, view."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Extents, Shape, Spec, dense_strides, extents
from wgpu_backend.ops.check import pad_to_4d, require, require_rank, vec4s
from wgpu_backend.ops.index.bits import moving, require_plain
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import concat, contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import make_view

# Axes of one window.
FEW_AXES = 4


@op(trusted=True)
def window(x: Node, *, start: Sequence[int], shape: Shape, repeated: bool = False) -> Launch:
    """Copy a window of a tensor that may go beyond its ends; see `pad_ext` and `repeat_4d`.

    Parameters
    ----------
    x : (...)
        Up to four axes of any strides, any plain dtype.
    start : sequence of int
        Where the window begins along each axis; may be negative.
    repeated : bool
        Beyond its ends `x` repeats; else it is zero there.

    Returns
    -------
    Dense tensor of that shape and the dtype of `x`.
    """
    require_rank("window", "x", x, 0)
    require_plain("window", "x", x)
    out = Spec.dense(shape, x.spec.dtype)
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params={
            "size": out.size,
            "shape": pad_to_4d(out.shape, 1),
            # Places before the first value wrap around in u32, and so are outside.
            "start": pad_to_4d(tuple(s % 2**32 for s in start), 0),
        },
        choices={**moving(out.dtype, "x"), "REPEATED": repeated},
        work=2 * out.nbytes,
    )


@window.reference
def window_reference(
    x: Array, *, start: Sequence[int], shape: Sequence[int], repeated: bool = False
) -> Array:
    """Copy a window of a tensor that may go beyond its ends."""
    x = x.reshape((1,) * (len(shape) - x.ndim) + x.shape)
    places = [np.arange(n) + s for n, s in zip(shape, start, strict=True)]
    if repeated:
        # An axis without values has no period.
        wrapped = [p % max(n, 1) for p, n in zip(places, x.shape, strict=True)]
        return x[np.ix_(*wrapped)]
    y = np.zeros(shape, x.dtype)
    inside = [(p >= 0) & (p < n) for p, n in zip(places, x.shape, strict=True)]
    taken = [p[i] for p, i in zip(places, inside, strict=True)]
    y[np.ix_(*inside)] = x[np.ix_(*taken)]
    return y


def take_window(x: Node, start: Sequence[int], shape: Shape, *, repeated: bool = False) -> Node:
    """Copy a window of a tensor of any rank: beyond four axes one axis after the other.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    start, shape, repeated
        See `window`.

    Returns
    -------
    Dense tensor of that shape and the dtype of `x`.
    """
    if len(shape) <= FEW_AXES:
        return window(x, start=start, shape=shape, repeated=repeated)
    for axis, (first, extent) in enumerate(zip(start, shape, strict=True)):
        own = x.spec.shape
        if first or extent != own[axis]:
            outer, inner = math.prod(own[:axis]), math.prod(own[axis + 1 :])
            lines = reshape_node(x, (outer, own[axis], inner))
            cut = window(
                lines, start=(0, first, 0), shape=(outer, extent, inner), repeated=repeated
            )
            x = reshape_node(cut, (*own[:axis], extent, *own[axis + 1 :]))
    return x if x.spec.is_dense else contiguous(x)


def pad_ext(x: Node, *amounts: Sequence[int]) -> Node:
    """Add zeros at both ends of axes, or cut values off.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    *amounts : (int, int)
        Values added before and after along each axis, the first axis first; negative numbers
        cut off.

    Returns
    -------
    Dense tensor of the dtype of `x`.

    Raises
    ------
    ShapeError
        There is not one pair for each axis, or more is cut off than there is.
    """
    shape, pairs = x.spec.shape, [extents("pad_ext", pair) for pair in amounts]
    require(
        len(amounts) == len(shape) and all(len(pair) == 2 for pair in pairs),
        ShapeError,
        f"pad_ext: {len(amounts)} amounts, {shape} needs {len(shape)} pairs, one for each axis",
    )
    return _pad("pad_ext", x, [(pair[0], pair[1]) for pair in pairs])


def pad(x: Node, *amounts: Extents) -> Node:
    """Add zeros after the values of axes, or cut values off.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    *amounts : int
        Values added along each axis, the first axis first; negative numbers cut off.

    Returns
    -------
    Dense tensor of the dtype of `x`.

    Raises
    ------
    ShapeError
        There is not one number for each axis, or more is cut off than there is.
    """
    shape, given = x.spec.shape, extents("pad", amounts)
    require(
        len(given) == len(shape),
        ShapeError,
        f"pad: {len(given)} amounts, {shape} needs {len(shape)}, one for each axis",
    )
    return _pad("pad", x, [(0, amount) for amount in given])


def _pad(name: str, x: Node, amounts: Sequence[tuple[int, int]]) -> Node:
    for axis, (before, after) in enumerate(amounts):
        extent = x.spec.shape[axis]
        # What is cut off at one end is not made up for at the other.
        cut = max(-before, 0) + max(-after, 0)
        require(
            cut <= extent,
            ShapeError,
            f"{name}: {cut} values cut off axis {axis}, which has {extent}",
        )
    shape = tuple(n + a + b for n, (a, b) in zip(x.spec.shape, amounts, strict=True))
    return take_window(x, [-front for front, _ in amounts], shape)


def repeat_4d(x: Node, *shape: Extents) -> Node:
    """Repeat a tensor along its axes until it has a shape.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    *shape : int
        Multiples of the extents of `x`; axes it lacks come first and count as 1.

    Returns
    -------
    Dense tensor of that shape and the dtype of `x`.

    Raises
    ------
    ShapeError
        An extent is not a multiple.
    """
    wanted = extents("repeat", shape)
    own = (1,) * (len(wanted) - len(x.spec.shape)) + x.spec.shape
    require(
        len(own) == len(wanted)
        and all(n >= 0 and (n % m == 0 if m else n == 0) for n, m in zip(wanted, own, strict=True)),
        ShapeError,
        f"repeat: {x.spec.shape} to {wanted}, needs a multiple of each extent",
    )
    return take_window(reshape_node(x, own), (0,) * len(wanted), wanted, repeated=True)


def repeat(x: Node, axis: int, n: int) -> Node:
    """Repeat a tensor `n` times along an axis; see `repeat_4d`.

    Parameters
    ----------
    x : (..., m, ...)
        Any plain dtype.

    Returns
    -------
    (..., n * m, ...), of the dtype of `x`.

    Raises
    ------
    ShapeError
        There is no such axis, or `n` is negative.
    """
    axis, (n,) = x.spec.axis(axis, "repeat"), extents("repeat", (n,))
    require(n >= 0, ShapeError, f"repeat: {n} times, needs 0 or more")
    shape = list(x.spec.shape)
    shape[axis] *= n
    return repeat_4d(x, *shape)


def stack(x: Node, axis: int, *others: Node) -> Node:
    """Join tensors along an axis that they have; see `concat`.

    Parameters
    ----------
    x : (..., i, ...)
    *others : (..., j, ...), all other extents and the dtype as in `x`

    Returns
    -------
    (..., i + j + ..., ...), in the order given.
    """
    joined: list[Node] = [x, *others]
    # Neighbours first, in pairs: then each value is copied log2(n) times, not n times.
    while len(joined) > 1:
        left, right = joined[::2], joined[1::2]
        pairs = zip(left, right, strict=False)
        joined = [*(concat(a, b, axis=axis) for a, b in pairs), *left[len(right) :]]
    return joined[0]


def as_strided(x: Node, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Node:
    """View the storage of a tensor with any strides.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    shape, strides : sequence of int
        Strides count elements, and may be 0.
    offset : int
        Elements from the first value of `x` to that of the view.

    Returns
    -------
    View of that shape.

    Raises
    ------
    ShapeError
        The view would leave the storage.
    """
    require_plain("as_strided", "x", x)
    return make_view(x, window_spec("as_strided", x, shape, strides, offset))


def view(
    x: Node, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0
) -> Node:
    """View the storage of a tensor; see `as_strided`.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    strides : sequence of int or None
        None for values that follow each other.

    Returns
    -------
    View of that shape.

    Raises
    ------
    ShapeError
        The view would leave the storage.
    """
    require_plain("view", "x", x)
    steps = dense_strides(extents("view", shape)) if strides is None else strides
    return make_view(x, window_spec("view", x, shape, steps, offset))


def window_spec(
    name: str, x: Node, shape: Sequence[int], strides: Sequence[int], offset: int
) -> Spec:
    """Return the spec of a strided view of `x`; raise ShapeError if it leaves the storage."""
    shape = Spec.dense(extents(name, shape), x.spec.dtype).shape
    strides, (offset,) = extents(f"{name}: strides", strides), extents(name, (offset,))
    require(
        len(shape) == len(strides) and min([*shape, *strides], default=0) >= 0,
        ShapeError,
        f"{name}: shape {tuple(shape)}, strides {tuple(strides)}, needs as many, none negative",
    )
    spec = Spec(tuple(shape), x.spec.dtype, tuple(strides), x.spec.offset + offset)
    # A weight may lie in parts: only what it shows itself is known to be there.
    held = x.spec.span if x.storage.kind == "weight" else x.storage.nbytes // x.spec.dtype.nbytes(1)
    require(
        spec.offset >= 0 and spec.span <= held,
        ShapeError,
        f"{name}: elements {spec.offset} to {spec.span}, the storage has {held}",
    )
    return spec
