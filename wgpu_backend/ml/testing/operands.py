"""Operands with which `wgpu_backend.testing` tries an op: extents, values, layouts.

Each layout stores its values in another way; some are special by their values. The NumPy reference
gets the same tensors, so a layout may also choose the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import BF16, F16, F32, DType, f32_to_bf16, named
from wgpu_backend.files.quantize import decode_blocks
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor

Array = NDArray[Any]
Shapes = tuple[tuple[int, ...], ...]
FLOATS = (F32, F16, BF16)
# One, odd, a whole number of vectors, and just beyond one and many work groups.
EXTENTS = (1, 3, 16, 33, 257)
# Blocks in a row of a quantised operand, by the round.
BLOCKS = (1, 2, 3, 1, 5)
# Rounds in which the first two names have several values each, so that they broadcast.
BROADCAST_ROUNDS = (1, 4)
# The round of extents for cases that are special in another way.
PLAIN_TURN = 4
# More rows than the 65,535 work groups of one dimension of a grid.
MANY = 70_000
# All other extents, so that such cases stay small.
FEW = 3
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)


def operand_dtype(shape: str, dtype: DType) -> DType:
    """Return the type of an operand: the one after a colon, or the one being tried."""
    own = shape.partition(":")[2]
    return named(own) if own else dtype


def cases(shapes: Sequence[str], broadcast: bool) -> Iterator[tuple[Shapes, str]]:
    """Yield the shapes of the operands and their layout, for each case of a trial.

    Parameters
    ----------
    shapes : sequence of str
        See `wgpu_backend.testing.Trial`.
    broadcast : bool
        Also with extents of 1 and without leading axes.
    """
    for turn in range(len(EXTENTS)):
        whole = _fill_extents(shapes, turn)
        for layout in (name for name in LAYOUTS if name not in VALUES):
            yield whole, layout
            if broadcast and turn in BROADCAST_ROUNDS:
                yield from ((narrow, layout) for narrow in _narrow_shapes(whole))
    for layout in VALUES:
        yield _fill_extents(shapes, PLAIN_TURN), layout
    blocks = _names([s for s in shapes if operand_dtype(s, F32).quantised])
    for name in _names(shapes):
        if name not in blocks:
            yield _fill_extents(shapes, PLAIN_TURN, {name: 0}), "dense"


def many(shapes: Sequence[str]) -> Iterator[Shapes]:
    """Yield shapes with one large and otherwise small extents, for each name."""
    names = _names(shapes)
    blocks = _names([s for s in shapes if operand_dtype(s, F32).quantised])
    for name in names:
        if name not in blocks:
            yield _fill_extents(
                shapes, 0, {n: FEW for n in names if n not in blocks} | {name: MANY}
            )


def _words(shape: str) -> list[str]:
    return shape.partition(":")[0].split()


def _names(shapes: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(w for s in shapes for w in _words(s) if not w.isdigit()))


def _fill_extents(
    shapes: Sequence[str], turn: int, known: Mapping[str, int] | None = None
) -> Shapes:
    """Replace names by numbers; rows of a quantised operand are whole blocks."""
    value = {n: EXTENTS[(turn + 2 * i) % len(EXTENTS)] for i, n in enumerate(_names(shapes))}
    for shape in shapes:
        last, dtype = _words(shape)[-1:], operand_dtype(shape, F32)
        if dtype.quantised and last and last[0] in value:
            value[last[0]] = BLOCKS[turn] * dtype.block
    value |= known or {}
    return tuple(tuple(value[w] if w in value else int(w) for w in _words(s)) for s in shapes)


def _narrow_shapes(shapes: Shapes) -> Iterator[Shapes]:
    for at, shape in enumerate(shapes):
        for narrow in {(1,) * len(shape), shape[-1:], (*shape[:-1], 1)} - {shape}:
            yield (*shapes[:at], narrow, *shapes[at + 1 :])


def values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Return random values: normal floats, integers 0 to 2, or blocks (..., bytes of a row)."""
    if dtype.quantised:
        return _blocks(rng, dtype, shape)
    if dtype in FLOATS:
        return rng.standard_normal(shape, np.float32)
    return rng.integers(0, 3, shape, np.int32)


def _blocks(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Return random bytes, without blocks whose scales are not finite."""
    count = dtype.nbytes(int(np.prod(shape))) // dtype.block_nbytes
    made = rng.integers(0, 256, (2 * count + 16, dtype.block_nbytes), np.uint8)
    with np.errstate(all="ignore"):
        # Scales of random bits may be NaN, infinite, or so large that sums overflow.
        finite = np.abs(decode_blocks(dtype, made)).max(axis=1) < 1e3
    chosen = np.resize(made[finite], (count, dtype.block_nbytes))
    return chosen.reshape(*shape[:-1], dtype.nbytes(shape[-1]))


def dense(context: Context, values: Array, dtype: DType) -> Tensor:
    """Return a dense tensor."""
    if dtype.quantised:
        cols = values.shape[-1] // dtype.block_nbytes * dtype.block
        return context.from_bytes(dtype, values.tobytes(), *values.shape[:-1], cols)
    if dtype == BF16:
        return context.from_bytes(BF16, f32_to_bf16(values).tobytes(), *values.shape)
    return context.from_numpy(values, dtype)


def _permute(context: Context, values: Array, dtype: DType) -> Tensor:
    return dense(context, values.transpose(), dtype).permute(*range(values.ndim)[::-1])


def _transpose(context: Context, values: Array, dtype: DType) -> Tensor:
    if values.ndim < 2:
        return _step(context, values, dtype)
    order = [*range(values.ndim - 2), values.ndim - 1, values.ndim - 2]
    return dense(context, np.swapaxes(values, -1, -2), dtype).permute(*order)


def _slice(context: Context, values: Array, dtype: DType) -> Tensor:
    if values.ndim == 0:
        return _shift(context, values, dtype)
    # A kernel that reads outside of its slice gives NaN.
    outside = np.nan if dtype in FLOATS else 0
    widths = [(1, 2), *[(0, 0)] * (values.ndim - 2), (3, 2)][-values.ndim :]
    wide = np.pad(values, widths, constant_values=outside)
    view = dense(context, wide, dtype).slice(-1, 3, 3 + values.shape[-1])
    return view if values.ndim == 1 else view.slice(0, 1, 1 + values.shape[0])


def _step(context: Context, values: Array, dtype: DType) -> Tensor:
    if values.ndim == 0:
        return dense(context, values, dtype)
    return dense(context, np.repeat(values, 3, axis=0), dtype).slice(0, 1, 3 * len(values), 3)


def _shift(context: Context, values: Array, dtype: DType) -> Tensor:
    flat = np.concatenate([np.full(1, 7, values.dtype), values.reshape(-1)])
    return dense(context, flat, dtype).slice(0, 1, flat.size).reshape(*values.shape)


def _repeat(context: Context, values: Array, dtype: DType) -> Tensor:
    """Repeat one value along the first axis, with a stride of 0."""
    if values.ndim == 0:
        return dense(context, values, dtype)
    first = dense(context, values[:1], dtype)
    return first.as_strided(values.shape, (0, *first.strides[1:]))


def _compute(context: Context, values: Array, dtype: DType) -> Tensor:
    """Return the result of another op, so that an op may be computed in place."""
    return dense(context, values, dtype).contiguous()


def _mix_nonfinite(context: Context, values: Array, dtype: DType) -> Tensor:
    """Put NaN, infinities and zeros of both signs among the values."""
    if dtype not in FLOATS:
        return dense(context, values, dtype)
    mixed = values.copy().reshape(-1)
    # A view, so that this sets values of `mixed`.
    places = mixed[::7]
    places[:] = np.resize(SPECIAL, places.shape)
    return dense(context, mixed.reshape(values.shape), dtype)


LAYOUTS: dict[str, Callable[[Context, Array, DType], Tensor]] = {
    "dense": dense,
    "permuted": _permute,
    "transposed": _transpose,
    "sliced": _slice,
    "stepped": _step,
    "shifted": _shift,
    "repeated": _repeat,
    "computed": _compute,
    "nonfinite": _mix_nonfinite,
}
# Layouts that are special by their values.
VALUES = ("nonfinite",)
# Layouts that begin after the start of their buffer.
OFFSET = {"sliced", "shifted"}
# Layouts that begin at the start of their buffer, with other strides.
STRIDED = {"permuted", "transposed", "stepped", "repeated"}


def operand(context: Context, layout: str, values: Array, dtype: DType) -> Tensor:
    """Return a tensor of a layout; of block formats, dense or a slice of whole rows."""
    if not dtype.quantised:
        return LAYOUTS[layout](context, values, dtype)
    if layout in ("dense", *VALUES) or values.ndim < 2:
        return dense(context, values, dtype)
    more = np.concatenate([values[:1], values, values[:1]])
    return dense(context, more, dtype).slice(0, 1, 1 + len(values))
