"""The layout of a tensor's elements in its storage: shape, type, strides, offset.

Shapes are row-major: `shape[-1]` is contiguous in a dense tensor. Strides and offset count
elements.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from wgpu_backend.dtypes import DType, as_dtype
from wgpu_backend.errors import ShapeError

Shape = tuple[int, ...]
# Several integers, or one that stands for all.
Extents = int | Sequence[int]
# Bytes of one tensor: sizes stay within a signed 64-bit integer.
MOST_NBYTES = 2**63 - 1


def extents(subject: str, values: object) -> Shape:
    """Return whole numbers that were given one by one or as one sequence.

    Parameters
    ----------
    subject : str
        Begins the message.
    values : int, or sequence of int or of one sequence of int
        NumPy's integers are taken, too.

    Raises
    ------
    ShapeError
        A value is not a whole number; a bool does not count as one.
    """
    # The usual case first: every op of a graph comes here.
    if isinstance(values, tuple) and all(type(v) is int for v in cast("Shape", values)):
        return cast("Shape", values)
    items = _items(values)
    if len(items) == 1 and not isinstance(items[0], str):
        items = _items(items[0])
    return tuple(_whole(subject, item, items) for item in items)


def _items(values: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the values of a sequence; of any other value, a tuple with that value."""
    try:
        return (values,) if isinstance(values, str) else tuple(values)
    except TypeError:
        return (values,)


def _whole(subject: str, value: Any, among: tuple[Any, ...]) -> int:  # noqa: ANN401
    try:
        # `operator.index` would take True as 1.
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    shown = among if len(among) > 1 else repr(value)
    raise ShapeError(f"{subject}: {shown}, needs whole numbers, got {value!r}")


def dense_strides(shape: Sequence[int]) -> Shape:
    """Return the strides of a dense tensor of that shape."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Spec:
    """The shape, dtype, strides and offset of a tensor; strides and offset in elements."""

    shape: Shape
    dtype: DType
    strides: Shape
    offset: int = 0

    @classmethod
    def dense(cls, shape: int | Sequence[Extents], dtype: object) -> Spec:
        """Return the spec of a new, dense tensor.

        Parameters
        ----------
        shape : int or sequence of int
            See `extents`.
        dtype : DType, or what stands for one
            See `wgpu_backend.dtypes.as_dtype`.

        Raises
        ------
        ShapeError
            An extent is no whole number or negative, or all together are more than 64 bits count.
        DTypeError
            There is no such type.
        """
        wanted, kind = extents("shape", shape), as_dtype(dtype)
        if any(extent < 0 for extent in wanted):
            raise ShapeError(f"shape {wanted}: an extent is negative")
        # As NumPy has it, an extent of 0 excuses no other.
        if math.prod(n for n in wanted if n) // kind.block * kind.block_nbytes > MOST_NBYTES:
            raise ShapeError(f"shape {wanted}: more bytes of {kind} than 63 bits can count")
        return cls(wanted, kind, dense_strides(wanted))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of a dense tensor of this shape."""
        return self.dtype.nbytes(self.size)

    @property
    def is_dense(self) -> bool:
        """True if elements follow each other in row-major order, from any offset."""
        wanted = dense_strides(self.shape)
        return all(
            have == want or extent == 1
            for have, want, extent in zip(self.strides, wanted, self.shape, strict=True)
        )

    @property
    def span(self) -> int:
        """The largest element index that the tensor touches in its storage, plus one."""
        # Without values nothing is touched, and (n - 1) would be -1.
        if self.size == 0:
            return self.offset
        return (
            self.offset
            + 1
            + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        )

    def axis(self, axis: int, subject: str) -> int:
        """Return `axis` counted from the front.

        Raises
        ------
        ShapeError
            There is no such axis.
        """
        rank = len(self.shape)
        # NumPy's integers are valid axes, too.
        if type(axis) is not int:
            (axis,) = extents(f"{subject}: axis", (axis,))
        if not -rank <= axis < rank:
            raise ShapeError(f"{subject}: axis {axis}, {self.shape} has axes {-rank} to {rank - 1}")
        return axis % rank


def broadcast(subject: str, a: Spec, b: Spec) -> Shape:
    """Return the shape that both specs broadcast to, by NumPy's rule."""
    rank = max(len(a.shape), len(b.shape))
    shape: list[int] = []
    for i in range(-rank, 0):
        m = a.shape[i] if len(a.shape) >= -i else 1
        n = b.shape[i] if len(b.shape) >= -i else 1
        if m != n and 1 not in (m, n):
            raise ShapeError(
                f"{subject}: {a.shape} and {b.shape} do not broadcast, {m} against {n}"
            )
        shape.append(n if m == 1 else m)
    return tuple(shape)


def broadcast_strides(spec: Spec, shape: Shape) -> Shape:
    """Return the strides with which `spec` reads as `shape`: zero along every repeated axis."""
    missing = len(shape) - len(spec.shape)
    # An axis of one value repeats along any extent.
    own = tuple(s if n != 1 else 0 for n, s in zip(spec.shape, spec.strides, strict=True))
    return (0,) * missing + own


def reshape(spec: Spec, shape: Sequence[Extents]) -> Spec | None:
    """Return a view under another shape (one extent may be -1), or None if it needs a copy."""
    filled = fill_extent(spec, extents("reshape", shape))
    strides = _reshaped_strides(spec, filled)
    return None if strides is None else Spec(filled, spec.dtype, strides, spec.offset)


def fill_extent(spec: Spec, shape: Sequence[int]) -> Shape:
    """Replace the one -1 in `shape` so that sizes agree."""
    known = math.prod(n for n in shape if n != -1)
    unknown = sum(n == -1 for n in shape)
    if unknown > 1 or (unknown == 1 and (known == 0 or spec.size % known)):
        raise ShapeError(f"reshape: {spec.shape} of {spec.size} values does not fit {tuple(shape)}")
    filled = tuple(spec.size // known if n == -1 else n for n in shape)
    if math.prod(filled) != spec.size or any(n < 0 for n in filled):
        raise ShapeError(
            f"reshape: {spec.shape} has {spec.size} values, {tuple(shape)} has {math.prod(filled)}"
        )
    return filled


def merged_axes(spec: Spec) -> list[tuple[int, int]]:
    """Return extents and strides, with neighbouring axes joined where they step as one."""
    merged: list[tuple[int, int]] = []
    for extent, stride in zip(spec.shape, spec.strides, strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return merged


def _reshaped_strides(spec: Spec, shape: Shape) -> Shape | None:
    if spec.size == 0:
        return dense_strides(shape)
    axes = merged_axes(spec)
    strides: list[int] = []
    left, step = 1, 1
    for extent in reversed(shape):
        if extent == 1:
            strides.append(step)
            continue
        if left == 1:
            left, step = axes.pop() if axes else (extent, 1)
        if left % extent:
            return None
        strides.append(step)
        left //= extent
        step *= extent
    return tuple(reversed(strides))


def permute(spec: Spec, order: Sequence[Extents]) -> Spec:
    """Permute axes: axis `order[i]` becomes axis `i`, as in NumPy's transpose."""
    wanted = extents("permute", order)
    axes = [spec.axis(a, "permute") for a in wanted]
    if sorted(axes) != list(range(len(spec.shape))):
        raise ShapeError(f"permute: order {wanted}, {spec.shape} has {len(spec.shape)} axes")
    shape = tuple(spec.shape[a] for a in axes)
    return Spec(shape, spec.dtype, tuple(spec.strides[a] for a in axes), spec.offset)


def slice_axis(spec: Spec, axis: int, start: int, stop: int, step: int = 1) -> Spec:
    """Take `start` to `stop` of one axis, every `step`-th; `0 <= start <= stop <= extent`."""
    axis = spec.axis(axis, "slice")
    start, stop, step = extents("slice", (start, stop, step))
    extent = spec.shape[axis]
    if not 0 <= start <= stop <= extent or step < 1:
        raise ShapeError(
            f"slice: {start}:{stop}:{step} of axis {axis}, which has {extent} values; needs ends "
            f"from 0 to {extent} and a step of at least 1"
        )
    shape, strides = list(spec.shape), list(spec.strides)
    shape[axis] = -(-(stop - start) // step)
    strides[axis] *= step
    # An empty slice at the end must not begin beyond the storage.
    offset = spec.offset + (start * spec.strides[axis] if shape[axis] else 0)
    return Spec(tuple(shape), spec.dtype, tuple(strides), offset)
