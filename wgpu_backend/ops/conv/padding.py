"""Padding with a number or with values of the tensor itself: pad_mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from wgpu_backend.dtypes import BF16, BOOL, DType, value_bits
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, extents
from wgpu_backend.ops.check import pad_to_4d, require, require_number, require_rank, vec4s
from wgpu_backend.ops.index.bits import moving, require_plain
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.shapes import reshape_node

PadMode = Literal["constant", "edge", "reflect", "symmetric", "wrap"]
MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
Pair = tuple[int, int]


@op(dense=("x",), trusted=True)
def padded(
    x: Node, *, before: Sequence[int], shape: Shape, mode: PadMode, value: float = 0.0
) -> Launch:
    """Pad up to four axes; `pad_mode` calls this op.

    Parameters
    ----------
    x : (...)
        Up to four axes, any plain dtype.
    before : sequence of int
        Values in front along each axis.
    shape : tuple of int
        Of the result.

    Returns
    -------
    Dense tensor of that shape and the dtype of `x`.
    """
    out = Spec.dense(shape, x.spec.dtype)
    have = x.spec.shape
    high, low = divmod(value_bits(value, out.dtype), 2**32)
    cycles = [_cycle(n, mode) for n in have]
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params={
            "size": out.size,
            "shape": pad_to_4d(out.shape, 1),
            # Where the result begins, in the cycle after which values come again.
            "start": pad_to_4d(tuple(-b % c for b, c in zip(before, cycles, strict=True)), 0),
            "before": pad_to_4d(tuple(before), 0),
            "cycle": pad_to_4d(tuple(cycles), 1),
            "low": low,
            "high": high,
        },
        choices={**moving(out.dtype, "x"), "MODE": MODES.index(mode)},
        work=2 * out.nbytes,
    )


@padded.reference
def padded_reference(
    x: Array, *, before: Sequence[int], shape: Sequence[int], mode: str, value: float = 0.0
) -> Array:
    """Pad with `numpy.pad`."""
    pairs = [(b, want - b - n) for b, want, n in zip(before, shape, x.shape, strict=True)]
    if mode == "constant":
        return np.pad(x, pairs, constant_values=np.array(value).astype(x.dtype))
    how: Any = mode
    return np.pad(x, pairs, mode=how) if x.size else np.zeros(shape, x.dtype)


def _cycle(extent: int, mode: PadMode) -> int:
    # Values come again after a run forth and back, which repeats neither end.
    if mode == "reflect":
        return max(2 * extent - 2, 1)
    return max(2 * extent if mode == "symmetric" else extent, 1)


def pad_mode(
    x: Node, pairs: Sequence[Sequence[int]], mode: PadMode = "constant", value: float = 0.0
) -> Node:
    """Add values before and after the values of axes, as ``numpy.pad`` does.

    Parameters
    ----------
    x : (...)
        Up to eight axes, any plain dtype.
    pairs : sequence of (int, int)
        Values added before and after along each axis, none of them negative.
    mode : str
        ``constant``: `value`. ``edge``: the outermost value. ``reflect``: back from the outermost
        value, which is not repeated. ``symmetric``: back from it, repeated. ``wrap``: from the
        other end. What is longer than `x` goes back and forth, or round and round.
    value : float
        Rounded to the type; for integers a whole number in their range.

    Returns
    -------
    Dense tensor of the dtype of `x`.

    Raises
    ------
    ShapeError
        There is not one pair for each axis, one is negative, or an axis that is padded with its
        own values is empty.
    OptionError
        There is no such mode.
    DTypeError
        The type does not hold `value`.
    """
    require_rank("pad_mode", "x", x, 0, 8)
    require_plain("pad_mode", "x", x)
    _require_value(value, x.spec.dtype)
    require(
        mode in MODES, OptionError, f"pad_mode: mode is {mode!r}, needs one of {', '.join(MODES)}"
    )
    amounts = _check_pads(x.spec.shape, pairs, mode)
    shape = tuple(n + a + b for n, (a, b) in zip(x.spec.shape, amounts, strict=True))
    axes = _merge_axes(x.spec.shape, amounts)
    for part in _at_most_four(axes):
        have = [n for n, _ in part]
        before = [a for _, (a, _) in part]
        want = tuple(n + a + b for n, (a, b) in part)
        x = padded(reshape_node(x, have), before=before, shape=want, mode=mode, value=value)
    return reshape_node(x, shape)


def _require_value(value: float, dtype: DType) -> None:
    """Raise DTypeError if an integer type cannot hold the padding value."""
    require_number("pad_mode", "value", value)
    assert dtype.numpy is not None
    # BF16 is stored as u16 on the host, yet takes any value.
    if dtype == BF16 or dtype.numpy.kind not in "biu":
        return
    low, high = 0, 1
    if dtype != BOOL:
        low, high = np.iinfo(dtype.numpy.name).min, np.iinfo(dtype.numpy.name).max
    require(
        low <= value <= high and int(value) == value,
        DTypeError,
        f"pad_mode: value {value} around a tensor of {dtype}, needs a whole number {low} to {high}",
    )


def _check_pads(shape: Shape, pairs: Sequence[Sequence[int]], mode: PadMode) -> list[Pair]:
    found = [extents("pad_mode: pairs", pair) for pair in pairs]
    require(
        len(found) == len(shape) and all(len(pair) == 2 for pair in found),
        ShapeError,
        f"pad_mode: {len(found)} pairs, {shape} needs {len(shape)} of two numbers each",
    )
    for axis, (extent, pair) in enumerate(zip(shape, found, strict=True)):
        require(
            min(pair) >= 0, ShapeError, f"pad_mode: {pair} along axis {axis}, needs 0 or more each"
        )
        require(
            mode == "constant" or extent > 0 or max(pair) == 0,
            ShapeError,
            f"pad_mode: axis {axis} has 0 values, mode {mode!r} needs at least 1",
        )
    return [(pair[0], pair[1]) for pair in found]


def _merge_axes(shape: Sequence[int], amounts: Sequence[Pair]) -> list[tuple[int, Pair]]:
    """Return axes with their padding; neighbouring axes without padding are merged."""
    axes: list[tuple[int, Pair]] = []
    for extent, pair in zip(shape, amounts, strict=True):
        if axes and max(pair) == 0 and max(axes[-1][1]) == 0:
            extent *= axes.pop()[0]
        axes.append((extent, pair))
    return axes


def _at_most_four(axes: Sequence[tuple[int, Pair]]) -> list[list[tuple[int, Pair]]]:
    """Split a padding into steps over at most four axes each."""
    if len(axes) <= 4:
        return [list(axes)]
    # The axes without padding merge into one, so a step over three axes has four at most.
    first = [(n, p) if i < 3 else (n, (0, 0)) for i, (n, p) in enumerate(axes)]
    rest = [(n + sum(p), (0, 0)) if i < 3 else (n, p) for i, (n, p) in enumerate(axes)]
    steps = (_merge_axes([n for n, _ in part], [p for _, p in part]) for part in (first, rest))
    return [step for part in steps for step in _at_most_four(part)]
