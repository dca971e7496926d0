"""Random operands of functions of values, shapes and indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx  # pyright: ignore[reportMissingImports]
import numpy as np

import wgpu_backend.array as wx
from benchmarks.array_against_mlx.draw import FLOATS, INTEGERS, Both, Case, Draw, Drawn


def unary(dtypes: tuple[str, ...], low: float = -3.0, high: float = 3.0) -> Drawn:
    """Draw one array."""

    def drawn(d: Draw) -> Case:
        return (d.array(d.shape(), d.one_of(*dtypes), low, high),), {}

    return drawn


def binary(dtypes: tuple[str, ...], low: float = -3.0, high: float = 3.0) -> Drawn:
    """Draw two arrays that broadcast, of one type or two, or an array and a number."""

    def drawn(d: Draw) -> Case:
        shape = d.shape(0, 3)
        other = tuple(d.one_of(1, n) for n in shape[int(d.rng.integers(0, len(shape) + 1)) :])
        kind = d.one_of(*dtypes)
        first = d.array(shape, kind, low, high)
        if d.rng.random() < 0.2:
            return (first, 2), {}
        second = d.one_of(kind, kind, *dtypes)
        return (first, d.array(other, second, low, high)), {}

    return drawn


def reduced(dtypes: tuple[str, ...], *, one_axis: bool = False, keep: bool = True) -> Drawn:
    """Draw an array and axes of it."""

    def drawn(d: Draw) -> Case:
        shape = d.shape(1)
        options: dict[str, Any] = {"axis": d.axis(shape)}
        if not one_axis:
            some = tuple(a for a in range(len(shape)) if d.rng.random() < 0.5) or (0,)
            options = {"axis": d.one_of(None, d.axis(shape), some)}
        if keep:
            options["keepdims"] = d.one_of(True, False)
        return (d.array(shape, d.one_of(*dtypes)),), options

    return drawn


def shaped(function: Callable[[Draw, tuple[int, ...]], dict[str, Any]], least: int = 1) -> Drawn:
    """Draw an array of any type, and options that depend on its shape."""

    def drawn(d: Draw) -> Case:
        shape = d.shape(least)
        return (d.array(shape, d.one_of(*FLOATS, *INTEGERS, "bool"), 0, 9),), function(d, shape)

    return drawn


def with_ids(d: Draw) -> Case:
    """Draw an array, ids and an axis."""
    shape = d.shape(1)
    axis = d.axis(shape)
    ids = d.array(d.shape(1, 2), "int32", 0, shape[axis])
    return (d.array(shape, d.one_of(*FLOATS, *INTEGERS)), ids), {"axis": axis}


def along(d: Draw) -> Case:
    """Draw an array and an id for each value."""
    shape = d.shape(1)
    axis = d.axis(shape)
    wanted = list(shape)
    wanted[axis] = int(d.rng.integers(1, 6))
    ids = d.array(tuple(wanted), "int32", 0, shape[axis])
    return (d.array(shape, d.one_of(*FLOATS, *INTEGERS)), ids), {"axis": axis}


def put(d: Draw) -> Case:
    """Draw an array, distinct indices along an axis, and values."""
    shape = d.shape(1)
    axis = d.axis(shape) % len(shape)
    order = np.argsort(d.rng.random(shape), axis=axis).astype(np.int32)
    kind = d.one_of(*FLOATS, *INTEGERS)
    ids = d.both(order, "int32", lambda x: x)
    return (d.array(shape, kind), ids, d.array(shape, kind)), {"axis": axis}


def chosen(d: Draw) -> Case:
    """Draw a condition and two arrays that broadcast with it."""
    shape = d.shape(1, 3)
    kind = d.one_of(*FLOATS, *INTEGERS, "bool")
    return (d.array(shape, "bool"), d.array(shape, kind), d.array(shape[-1:], kind)), {}


def padded(d: Draw) -> Case:
    """Draw an array and its padding."""
    shape = d.shape(1)
    pairs = [(int(a), int(b)) for a, b in d.rng.integers(0, 3, (len(shape), 2))]
    mode = d.one_of("constant", "edge")
    return (d.array(shape, d.one_of("float32", "int32")), pairs), {"mode": mode}


def strided(d: Draw) -> Case:
    """Draw strided views of an array's values."""
    return (d.array((5, 9)),), {"shape": (4, 3, 2), "strides": (9, 2, 1), "offset": 3}


def index(d: Draw, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Draw numbers, slices, new axes and an array of ids."""
    found: list[Any] = []
    used = False
    for extent in shape:
        if d.rng.random() < 0.2:
            found.append(None)
        kind = int(d.rng.integers(0, 4))
        if kind == 0 and not used:
            found.append(int(d.rng.integers(-extent, extent)))
        elif kind == 1 and not used:
            used = True
            found.append(d.array((2, 3), "int32", 0, extent))
        else:
            step = d.one_of(1, 2, -1)
            found.append(slice(None, None, step) if step < 0 else slice(0, extent, step))
    return tuple(found)


def indexed(d: Draw) -> Case:
    """Draw an array and an index."""
    shape = d.shape(1)
    return (d.array(shape, d.one_of(*FLOATS, *INTEGERS)), index(d, shape)), {}


def assigned(d: Draw) -> Case:
    """Draw an array, a slice of it and values."""
    shape = d.shape(1)
    start = tuple(int(d.rng.integers(0, n)) for n in shape)
    places = tuple(slice(a, None, d.one_of(1, 2)) for a in start)
    return (d.array(shape, d.one_of("float32", "int32"), 0, 9), places, 5), {}


def added(d: Draw) -> Case:
    """Draw an array, repeated ids of rows, and rows to add."""
    shape = d.shape(1, 3)
    ids = d.array((7,), "int32", 0, shape[0])
    return (d.array(shape), ids, d.array((7, *shape[1:]))), {}


def placed(d: Draw) -> Case:
    """Draw an array and a window whose start is in an array."""
    start = Both(wx.array([1, 2], dtype=wx.int32), mx.array([1, 2], dtype=mx.int32))
    return (d.array((5, 4, 7)), start), {"axes": (0, 2), "slice_size": (2, 4, 3)}


def keyed(*choices: dict[str, Any]) -> Drawn:
    """Draw options of a random function, with a key."""

    def drawn(d: Draw) -> Case:
        number = int(d.rng.integers(0, 2**31))
        options = dict(d.one_of(*choices))
        return (), {**options, "key": Both(wx.random.key(number), mx.random.key(number))}

    return drawn


def meshed(d: Draw) -> Case:
    """Draw rows of a grid."""
    rows = [d.array((int(n),)) for n in d.rng.integers(1, 6, 3)]
    return tuple(rows), {"indexing": d.one_of("xy", "ij")}


def listed(d: Draw) -> Case:
    """Draw arrays of one shape and an axis."""
    shape = d.shape(1, 3)
    axis = d.axis(shape)
    kind = d.one_of(*FLOATS, *INTEGERS)
    return ([d.array(shape, kind) for _ in range(3)],), {"axis": axis}


def fixed(*cases: Case) -> Drawn:
    """Draw one of fixed cases."""
    return lambda d: d.one_of(*cases)


def order(d: Draw, shape: tuple[int, ...]) -> dict[str, Any]:
    """Draw axes in another order."""
    return {"axes": tuple(int(k) for k in d.rng.permutation(len(shape)))}
