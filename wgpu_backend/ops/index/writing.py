"""Ops that write into a window of a tensor: copy, set_inplace, slice_update.

All but `copy` give a new value, as those of `scatter` do: they write into a copy of their operand.
The memory plan lets that copy be the operand itself if nothing else reads it. Values are moved as
bits, so every plain type works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wgpu_backend.errors import ContextError, ShapeError
from wgpu_backend.graph import spec as specs
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import (
    pad_to_4d,
    require,
    require_dtype,
    require_rank,
    require_tensor,
    vec4s,
)
from wgpu_backend.ops.index.bits import moving, putting, require_plain
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import cast, contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import make_view


def select_nothing(launch: Launch, capabilities: Capabilities) -> Launch:
    """Return an empty launch where the memory plan put the copy over its operand."""
    if launch.choices.get("x") != "=y":
        return launch
    # The values lie there already.
    return replace(launch, threads=0, params={**launch.params, "size": 0})


@op(shader="ops/shape/contiguous", select=select_nothing, trusted=True)
def fresh(x: Node) -> Launch:
    """Copy a tensor so that it may be written; no copy is made if nothing else reads it.

    Parameters
    ----------
    x : (...)
        Up to four axes, any plain dtype.

    Returns
    -------
    Like `x`, dense.
    """
    require_rank("fresh", "x", x, 0)
    require_plain("fresh", "x", x)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    params = {
        "size": out.size,
        "shape": pad_to_4d(out.shape, 1),
        "x_strides": pad_to_4d(x.spec.strides, 0),
    }
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params=params,
        choices=moving(out.dtype, "x"),
        # The memory plan puts the copy over its operand where nothing reads that later.
        in_place=("x",),
        work=2 * out.nbytes,
    )


@fresh.reference
def fresh_reference(x: Array) -> Array:
    """Copy a tensor."""
    return x.copy()


@op(trusted=True)
def put_window(dst: Node, x: Node) -> Launch:
    """Write values into a strided window; see `copy`.

    Parameters
    ----------
    dst : (...)
        Up to four axes of any strides, no two values in one place.
    x : as `dst`, of storage of its own

    Returns
    -------
    `dst` after the write.
    """
    require_plain("put_window", "dst", dst)
    require_rank("put_window", "dst", dst, 0)
    require_writable("put_window", dst)
    return Launch(
        dst.spec,
        {"x": x},
        threads=x.spec.size,
        params={
            "size": x.spec.size,
            "shape": pad_to_4d(x.spec.shape, 1),
            "x_strides": pad_to_4d(x.spec.strides, 0),
        },
        choices=putting(dst.spec.dtype, "x"),
        into=dst,
        work=2 * x.spec.nbytes,
    )


@put_window.reference
def put_window_reference(dst: Array, x: Array) -> Array:
    """Write into a strided window."""
    dst[...] = x
    return dst


def require_writable(name: str, dst: Node) -> None:
    """Raise ContextError if `dst` is a weight or an input, which ops do not write."""
    kind = dst.storage.kind
    require(
        kind in ("state", "intermediate"),
        ContextError,
        f"{name}: dst is {'a weight' if kind == 'weight' else 'an input'}, needs a state",
    )


def _convert_like(x: Node, dst: Node) -> Node:
    """Return `x` in the type of `dst`, in storage of its own."""
    if x.spec.dtype != dst.spec.dtype:
        return cast(x, dtype=dst.spec.dtype)
    # A kernel may not read the buffer that it writes.
    return contiguous(x) if x.storage is dst.storage else x


def copy(x: Node, dst: Node) -> Node:
    """Write a tensor's values into another, converting between float types.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    dst : (...)
        A state or the result of an op, as many values as `x`; may be a view.

    Returns
    -------
    `dst` after the write.

    Raises
    ------
    ShapeError
        There are not as many values.
    ContextError
        `dst` is a weight or an input, which ops do not write.
    """
    require_tensor("copy", "dst", dst)
    require(
        x.spec.size == dst.spec.size,
        ShapeError,
        f"copy: {x.spec.shape} has {x.spec.size} values, {dst.spec.shape} has {dst.spec.size}",
    )
    require_writable("copy", dst)
    values = _convert_like(x, dst)
    return put_window(dst, reshape_node(values, dst.spec.shape))


def _update_window(name: str, x: Node, window: Spec, src: Node) -> Node:
    """Return `x` with `src` in a window of it; the spec's offset is from the first value of `x`."""
    require_dtype(name, "src", src, (x.spec.dtype,))
    whole = fresh(x)
    written = put_window(make_view(whole, window), src)
    return make_view(written, whole.spec)


def set_inplace(x: Node, src: Node, strides: Sequence[int], offset: int = 0) -> Node:
    """Replace a strided window of a tensor.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    src : (...)
        Of the dtype of `x`.
    strides : sequence of int
        From one value of the window to the next along each axis of `src`, in elements of `x` seen
        as dense; no two values may share a place.
    offset : int
        Element of `x` where the window begins.

    Returns
    -------
    Like `x`, dense, a new value.

    Raises
    ------
    ShapeError
        The window leaves `x`, or there is not one stride for each axis of `src`.
    """
    require_tensor("set_inplace", "src", src)
    strides = specs.extents("set_inplace: strides", strides)
    (offset,) = specs.extents("set_inplace: offset", (offset,))
    dense = Spec.dense(x.spec.shape, x.spec.dtype)
    shape = src.spec.shape
    require(
        len(strides) == len(shape) and min([*strides, offset], default=0) >= 0,
        ShapeError,
        f"set_inplace: strides {tuple(strides)}, offset {offset}, {shape} needs {len(shape)} "
        "strides, none negative",
    )
    window = Spec(shape, x.spec.dtype, tuple(strides), offset)
    require(
        window.span <= dense.size,
        ShapeError,
        f"set_inplace: elements {offset} to {window.span}, x has {dense.size}",
    )
    return _update_window("set_inplace", x, window, src)


def slice_update(
    x: Node,
    update: Node,
    starts: Sequence[int],
    stops: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Node:
    """Replace a slice of a tensor: ``x[starts:stops:steps] = update``.

    Parameters
    ----------
    x : (...)
        Any plain dtype.
    update : (...)
        Of the shape of the slice and the dtype of `x`.
    starts : sequence of int
        One for each axis.
    stops : sequence of int or None
        None takes as many values as `update` has.
    steps : sequence of int or None
        None is 1 everywhere.

    Returns
    -------
    Like `x`, dense, a new value.

    Raises
    ------
    ShapeError
        The slice leaves `x`, or `update` has another shape than it.
    """
    require_tensor("slice_update", "update", update)
    starts = specs.extents("slice_update: starts", starts)
    rank = len(x.spec.shape)
    strides = [1] * rank if steps is None else list(steps)
    ends = stops
    # Without stops, the update says where the slice ends.
    if stops is None and len(update.spec.shape) == len(starts) == len(strides):
        ends = [
            s + (n - 1) * d + 1 for s, n, d in zip(starts, update.spec.shape, strides, strict=True)
        ]
    require(
        ends is not None and len(starts) == len(ends) == len(strides) == rank,
        ShapeError,
        f"slice_update: starts {tuple(starts)}, update {update.spec.shape}, {x.spec.shape} needs "
        f"{rank} of each",
    )
    window = Spec.dense(x.spec.shape, x.spec.dtype)
    for axis, (start, stop, step) in enumerate(zip(starts, ends or (), strides, strict=True)):
        window = specs.slice_axis(window, axis, start, stop, step)
    require(
        update.spec.shape == window.shape,
        ShapeError,
        f"slice_update: update is {update.spec.shape}, the slice is {window.shape}",
    )
    return _update_window("slice_update", x, window, update)
