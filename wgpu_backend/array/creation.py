"""Arrays from nothing: zeros, ones, full, arange and their like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array import devices
from wgpu_backend.array.core import node_of, wrap
from wgpu_backend.array.types import default_of
from wgpu_backend.dtypes import BF16, BOOL, F32, I32, DType, dtype_of
from wgpu_backend.graph.spec import Extents, Shape, Spec, extents
from wgpu_backend.ops.rows.bits import narrowed
from wgpu_backend.ops.shape.views import viewed

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def asarray(
    values: Any,
    /,
    dtype: Any = None,
    *,
    device: object = None,
    copy: bool | None = None,
) -> Array:
    """Array of values; an array itself where neither type nor device asks for another."""
    from wgpu_backend.array.arrays import Array
    from wgpu_backend.array.shaping import astype

    if not isinstance(values, Array):
        return wrap(node_of(values, None if dtype is None else dtype_of(dtype), device))
    moved = values if device is None else values.to_device(devices.on(device).executor.info)
    return astype(moved, moved.dtype if dtype is None else dtype, copy=bool(copy))


def full(
    shape: Extents,
    value: Any,
    dtype: Any = None,
    *,
    device: object = None,
) -> Array:
    """Array that has one value everywhere: a view of it.

    Parameters
    ----------
    shape : int or sequence of int
    value : number, or array that broadcasts to the shape
    dtype : DType or None
        None is the type of the value.
    """
    wanted = extents("full", shape)
    Spec.dense(wanted, F32)  # refuses what is no shape
    from wgpu_backend.array.core import Core
    from wgpu_backend.array.shaping import astype, broadcast_to

    if isinstance(value, Core):
        given = wrap(value.node)
        return broadcast_to(given if dtype is None else astype(given, dtype), wanted)
    host = np.asarray(value)
    kind = default_of(host.dtype) if dtype is None else dtype_of(dtype)
    node = devices.on(device).constant(_bytes(host, kind), kind, host.shape)
    return broadcast_to(wrap(viewed(node, node.spec)), wanted)


def _bytes(host: np.ndarray[Any, Any], kind: DType) -> bytes:
    with np.errstate(all="ignore"):
        stored = narrowed(host) if kind == BF16 else host.astype(kind.numpy)
    return np.ascontiguousarray(stored).tobytes()


def zeros(shape: Extents, dtype: Any = None, *, device: object = None) -> Array:
    """Array of zeros, float32 by default."""
    return full(shape, 0, F32 if dtype is None else dtype, device=device)


def ones(shape: Extents, dtype: Any = None, *, device: object = None) -> Array:
    """Array of ones, float32 by default."""
    return full(shape, 1, F32 if dtype is None else dtype, device=device)


def empty(shape: Extents, dtype: Any = None, *, device: object = None) -> Array:
    """Array whose values do not matter: zeros."""
    return zeros(shape, dtype, device=device)


def _like(x: Array, dtype: Any, device: object) -> tuple[Shape, Any, object]:
    return x.shape, x.dtype if dtype is None else dtype, x.device if device is None else device


def zeros_like(x: Array, /, dtype: Any = None, *, device: object = None) -> Array:
    """Zeros in the shape and type of an array."""
    shape, kind, where = _like(x, dtype, device)
    return zeros(shape, kind, device=where)


def ones_like(x: Array, /, dtype: Any = None, *, device: object = None) -> Array:
    """Ones in the shape and type of an array."""
    shape, kind, where = _like(x, dtype, device)
    return ones(shape, kind, device=where)


def empty_like(x: Array, /, dtype: Any = None, *, device: object = None) -> Array:
    """Array in the shape and type of another, whose values do not matter."""
    return zeros_like(x, dtype, device=device)


def full_like(
    x: Array,
    /,
    value: Any,
    dtype: Any = None,
    *,
    device: object = None,
) -> Array:
    """One value in the shape and type of an array."""
    shape, kind, where = _like(x, dtype, device)
    return full(shape, value, kind, device=where)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    dtype: Any = None,
    *,
    device: object = None,
) -> Array:
    """Values from `start` in steps, up to and without `stop`; from 0 with one number.

    Parameters
    ----------
    start, stop, step : int or float
    dtype : DType or None
        None is int32 for whole numbers of Python, else float32.
    """
    from wgpu_backend.ops.shape import creation

    begin, end = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(v, int | np.integer) for v in (begin, end, step))
    kind = (I32 if whole else F32) if dtype is None else dtype_of(dtype)
    first = F32 if kind == BOOL else kind
    made = creation.arange.added(devices.on(device), start=begin, stop=end, step=step, dtype=first)
    from wgpu_backend.array.lifting import converted

    return wrap(converted(made, kind))
