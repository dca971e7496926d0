"""Operands drawn for the rows of the table of ops: extents, values, types and layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ops.operands import anything
from wgpu_backend.dtypes import BF16, BOOL, COMPLEX64, F16, DType, bf16_to_f32
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.testing.operands import FLOATS, LAYOUTS, VALUES, operand

Extents = Mapping[str, int]
Draw = Callable[[np.random.Generator, tuple[int, ...], Extents], np.ndarray]
# One, odd, whole vectors of four, a work group of 64, and just beyond one and more of them.
SIZES = (1, 2, 3, 5, 8, 16, 33, 64, 65, 257)
LARGEST = 40_000  # values of an operand
VIEWS = tuple(name for name in LAYOUTS if name not in ("dense", *VALUES))
WHOLE_ROWS = ("sliced", "shifted", "computed")


def normal(rng: np.random.Generator, shape: tuple[int, ...], extents: Extents) -> np.ndarray:
    return rng.standard_normal(shape)


def between(low: float, high: float) -> Draw:
    """Even between two bounds."""
    return lambda rng, shape, extents: rng.uniform(low, high, shape)


def any_bits(rng: np.random.Generator, shape: tuple[int, ...], extents: Extents) -> np.ndarray:
    """Stand for values of any bits: see `bits_of`."""
    raise NotImplementedError


def bits_of(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Values of a plain type of any bits but those of NaN, which hosts change."""
    words = anything(rng, dtype, shape)
    if dtype == BF16:
        return bf16_to_f32(words)
    assert dtype.numpy is not None
    values = words.view(dtype.numpy)
    return values.astype("f4") if dtype == F16 else values


def apart(rng: np.random.Generator, shape: tuple[int, ...], extents: Extents) -> np.ndarray:
    """Far enough from zero to divide by."""
    return rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)


def steps(rng: np.random.Generator, shape: tuple[int, ...], extents: Extents) -> np.ndarray:
    """Multiples of 1/64, which every float type holds: no threshold lies between two types."""
    return rng.integers(-250, 250, shape) / 64


def whole(low: int, high: int) -> Draw:
    """Whole numbers from `low` up to but not including `high`."""
    return lambda rng, shape, extents: rng.integers(low, high, shape)


def below(name: str) -> Draw:
    """Indices into an axis of that name."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...], extents: Extents) -> np.ndarray:
        return rng.integers(0, extents[name], shape)

    draw.into = name  # type: ignore[attr-defined]
    return draw


def distinct(count: int) -> Draw:
    """Indices below `count`, none twice."""
    return lambda rng, shape, extents: rng.permutation(count)[: shape[0]]


def increasing(rng: np.random.Generator, shape: tuple[int, ...], extents: Extents) -> np.ndarray:
    """Not negative, so that types without signs keep the order."""
    return np.sort(rng.uniform(0, 9, shape), axis=-1)


def well_conditioned(rng: np.random.Generator, shape: Any, extents: Extents) -> np.ndarray:
    """Triangles that can be solved."""
    return rng.uniform(-0.3, 0.3, shape) / shape[-1] ** 0.5 + 2 * np.eye(*shape[-2:])


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an op.

    Parameters
    ----------
    shape : str
        Its extents by name or number: ``"rows cols"``, ``"n 64"``. A name is the same number in
        every operand. ``"..."`` stands for 0 to 4 axes, the same in every operand.
    draw : callable
        Makes its values.
    dtype : DType or None
        Its type; None for the one that the row is tried with.
    views : tuple of str
        Layouts that it may have. An op that needs the values of a row side by side refuses others.
    """

    shape: str
    draw: Draw = normal
    dtype: DType | None = None
    views: tuple[str, ...] = VIEWS


@dataclass(frozen=True, slots=True)
class Sample:
    """Operands with values; `describe` says how to make them again."""

    arrays: Sequence[np.ndarray]
    dtypes: Sequence[DType]
    layouts: Sequence[str]
    options: Mapping[str, Any]

    def tensors(self, ctx: Context) -> list[Tensor]:
        """Make the operands in a context."""
        given = zip(self.arrays, self.dtypes, self.layouts, strict=True)
        return [operand(ctx, layout, array, dtype) for array, dtype, layout in given]

    def __str__(self) -> str:
        given = zip(self.arrays, self.dtypes, self.layouts, strict=True)
        said = ", ".join(f"{a.shape} {dtype} {layout}" for a, dtype, layout in given)
        return f"{said} {dict(self.options) or ''}"


def names(operands: Sequence[Operand]) -> list[str]:
    """Names of extents, in order."""
    words = (w for o in operands for w in o.shape.split() if not w.isdigit() and w != "...")
    return list(dict.fromkeys(words))


def draw_extents(
    rng: np.random.Generator,
    operands: Sequence[Operand],
    known: Mapping[str, Sequence[int]],
    most: int = LARGEST,
) -> dict[str, int]:
    """Draw a number for each name, so that no operand is too large."""
    for _ in range(1000):
        found = {n: int(rng.choice(known.get(n, SIZES))) for n in names(operands)}
        if all(np.prod(fill(o.shape, found, ()), dtype=float) <= most for o in operands):
            return found
    raise AssertionError(f"no extents of {operands} have at most {most} values")


def draw_axes(rng: np.random.Generator) -> tuple[int, ...]:
    """Draw a shape of up to four axes."""
    count = int(rng.integers(0, 5))
    while True:
        found = tuple(int(n) for n in rng.choice(SIZES, count))
        if np.prod(found, dtype=float) <= LARGEST:
            return found


def fill(shape: str, extents: Extents, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Put numbers in the place of names."""
    found: list[int] = []
    for word in shape.split():
        found += axes if word == "..." else [extents[word] if word in extents else int(word)]
    return tuple(found)


def as_type(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values of floats as those of another type: whole, not negative, true where above zero."""
    if dtype in FLOATS:
        return values.astype("f4")
    if dtype == BOOL:
        return np.asarray(values > 0)
    if dtype == COMPLEX64:
        return (values + 1j * np.flip(values)).astype("c8")
    assert dtype.numpy is not None
    if dtype.numpy.kind == "f":
        return values.astype(dtype.numpy)
    if values.dtype.kind == "f":
        values = np.rint(5 * values)
    return (np.abs(values) if dtype.numpy.kind == "u" else values).astype(dtype.numpy)
