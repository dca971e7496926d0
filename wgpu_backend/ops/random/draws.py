"""Random numbers of distributions: uniform, normal, truncated normal, Gumbel, Laplace, integers.

Each value takes one word of `random_bits`. Words become f32 numbers from 0 to 1 with one rounding
that is the same everywhere; operations that are exact from there on agree on all devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from wgpu_backend.dtypes import BF16, F16, F32, I8, I16, I32, I64, U8, U16, U32, U64, DType
from wgpu_backend.errors import DTypeError, OptionError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.check import FLOATS, require, vec4s
from wgpu_backend.ops.elementwise.transcendental import erfinv_reference
from wgpu_backend.ops.op import op
from wgpu_backend.ops.random.bits import require_key, words
from wgpu_backend.ops.reference import Array

SIGNED, UNSIGNED = (I32, I16, I8, I64), (U32, U16, U8, U64)
# The largest number below 1.
BELOW_ONE = {F32: 1 - 2**-24, F16: 1 - 2**-11, BF16: 1 - 2**-8}
# The lowest f32 whose inverse error function is finite.
OPEN_LOW = -1 + 2**-24
LARGEST = 3.4028234663852886e38
ROOT_HALF = 0.5**0.5


def _draw(
    name: str, key: Node, shape: Sequence[int], dtype: DType, params: Mapping[str, float]
) -> Launch:
    require_key(name, key)
    require(dtype in FLOATS, DTypeError, f"{name}: {dtype}, needs f32, f16 or bf16")
    out = Spec.dense(extents(f"{name}: shape", shape), dtype)
    # A number of fewer bits than f32 could be rounded up to 1.
    below = BELOW_ONE[dtype] if name == "random_uniform" else BELOW_ONE[F32]
    return Launch(
        out,
        {"key": key},
        threads=vec4s(out.size),
        params={"size": out.size, "below": below, **params},
        work=32 * out.size,
    )


@op(dense=("key",), trusted=True)
def random_uniform(
    key: Node, shape: Sequence[int], dtype: DType = F32, *, low: float = 0.0, high: float = 1.0
) -> Launch:
    """Draw numbers uniform from `low` up to `high`.

    Parameters
    ----------
    key : (2,)
        u32.
    dtype : DType
        f32, f16 or bf16.
    low, high : float
        From 0 to 1, 1 itself is never drawn; of others a sum may be rounded up to `high`.

    Raises
    ------
    ShapeError
        `key` has another shape.
    DTypeError
        The type is another.
    """
    ends = np.float32(low), np.float32(high)
    params = {"low": float(ends[0]), "range": float(ends[1] - ends[0])}
    return _draw("random_uniform", key, shape, dtype, params)


@random_uniform.reference
def random_uniform_reference(
    key: Array, shape: Sequence[int], dtype: DType = F32, *, low: float = 0.0, high: float = 1.0
) -> Array:
    """Draw uniform numbers."""
    ends = np.float32(low), np.float32(high)
    return fractions(key, shape, dtype) * (ends[1] - ends[0]) + ends[0]


@op(dense=("key",), trusted=True)
def random_gaussian(
    key: Node,
    shape: Sequence[int],
    dtype: DType = F32,
    *,
    loc: float = 0.0,
    scale: float = 1.0,
    least: float = -math.inf,
    most: float = math.inf,
) -> Launch:
    """Draw normal numbers between two bounds; see `random_normal_key`.

    Parameters
    ----------
    key : (2,)
        u32.
    dtype : DType
        f32, f16 or bf16.
    loc, scale : float
        What numbers are multiplied by, and then moved by.
    least, most : float
        Between which numbers are drawn, before that.
    """
    low, size = gaussian_range(least, most)
    # WGSL compilers may assume that no number is infinite.
    ends = (max(least, -LARGEST), min(most, LARGEST))
    params = {"low": low, "range": size, "least": ends[0], "most": ends[1]}
    return _draw("random_gaussian", key, shape, dtype, {**params, "loc": loc, "scale": scale})


@random_gaussian.reference
def random_gaussian_reference(
    key: Array,
    shape: Sequence[int],
    dtype: DType = F32,
    *,
    loc: float = 0.0,
    scale: float = 1.0,
    least: float = -math.inf,
    most: float = math.inf,
) -> Array:
    """Draw normal numbers."""
    low, size = (np.float32(end) for end in gaussian_range(least, most))
    # Uniform numbers between the error functions of the ends, inverted.
    normal = math.sqrt(2) * erfinv_reference(fractions(key, shape) * size + low)
    return np.clip(normal, least, most) * scale + loc


def gaussian_range(least: float, most: float) -> tuple[float, float]:
    """Return the error function at the lower end, and its difference to the upper end, in f32."""
    low = np.float32(max(math.erf(least * ROOT_HALF), OPEN_LOW))
    return float(low), float(np.float32(math.erf(most * ROOT_HALF)) - low)


def random_normal_key(
    key: Node, shape: Sequence[int], dtype: DType = F32, *, loc: float = 0.0, scale: float = 1.0
) -> Node:
    """Draw normal numbers, by the inverse of their distribution.

    Parameters
    ----------
    key : (2,)
        u32.
    dtype : DType
        f32, f16 or bf16.
    loc, scale : float
        Mean and standard deviation.

    Returns
    -------
    Tensor of that shape. Devices agree in all but the last digits.
    """
    return random_gaussian(key, shape, dtype=dtype, loc=loc, scale=scale)


def random_truncated_normal(
    key: Node, lower: float, upper: float, shape: Sequence[int] = (), dtype: DType = F32
) -> Node:
    """Draw numbers of the standard normal distribution between two bounds.

    Parameters
    ----------
    key : (2,)
        u32.
    lower, upper : float
        In standard deviations.
    dtype : DType
        f32, f16 or bf16.

    Returns
    -------
    Tensor of that shape.

    Raises
    ------
    OptionError
        `lower` is not below `upper`.
    """
    require(
        lower < upper,
        OptionError,
        f"random_truncated_normal: from {lower} to {upper}, needs one below the other",
    )
    return random_gaussian(key, shape, dtype=dtype, least=lower, most=upper)


@op(dense=("key",), trusted=True)
def random_gumbel(key: Node, shape: Sequence[int], dtype: DType = F32) -> Launch:
    """Draw numbers of the standard Gumbel distribution.

    Parameters
    ----------
    key : (2,)
        u32.
    dtype : DType
        f32, f16 or bf16.
    """
    return _draw("random_gumbel", key, shape, dtype, {})


@random_gumbel.reference
def random_gumbel_reference(key: Array, shape: Sequence[int], dtype: DType = F32) -> Array:
    """Draw numbers of the Gumbel distribution."""
    # A draw of 0 gives minus infinity.
    with np.errstate(divide="ignore"):
        return -np.log(-np.log(fractions(key, shape).astype(np.float64)))


@op(dense=("key",), trusted=True)
def random_laplace(
    key: Node, shape: Sequence[int], dtype: DType = F32, *, loc: float = 0.0, scale: float = 1.0
) -> Launch:
    """Draw numbers of a Laplace distribution.

    Parameters
    ----------
    key : (2,)
        u32.
    dtype : DType
        f32, f16 or bf16.
    loc, scale : float
        Mean, and mean distance from it.
    """
    low = np.float32(OPEN_LOW)
    params = {"low": float(low), "range": float(np.float32(1) - low), "loc": loc, "scale": scale}
    return _draw("random_laplace", key, shape, dtype, params)


@random_laplace.reference
def random_laplace_reference(
    key: Array, shape: Sequence[int], dtype: DType = F32, *, loc: float = 0.0, scale: float = 1.0
) -> Array:
    """Draw numbers of a Laplace distribution."""
    low = np.float32(OPEN_LOW)
    side: Array = (fractions(key, shape) * (np.float32(1) - low) + low).astype(np.float64)
    # The inverse of the distribution function, exact also near the middle.
    return np.sign(side) * np.log1p(-np.abs(side)) * scale + loc


@op(dense=("key",), trusted=True)
def random_randint(
    key: Node, low: int, high: int, shape: Sequence[int] = (), dtype: DType = I32
) -> Launch:
    """Draw integers from `low` to `high`, excluded, equally likely to within 2⁻³² of their number.

    Parameters
    ----------
    key : (2,)
        u32.
    low, high : int
        Within the range of the type, and of 32 bits.
    dtype : DType
        An integer type.

    Raises
    ------
    ShapeError
        `key` has another shape.
    DTypeError
        The type is another.
    OptionError
        There is no integer between the ends, or one of them is out of range.
    """
    require_key("random_randint", key)
    require(
        dtype in (*SIGNED, *UNSIGNED), DTypeError, f"random_randint: {dtype}, needs an integer type"
    )
    number = I32 if dtype in SIGNED else U32
    # Draws have 32 bits, so wide types get the range of narrow ones.
    kind = {I64: I32, U64: U32}.get(dtype, dtype).numpy
    assert kind is not None
    ends = np.iinfo(kind.name)
    require(
        ends.min <= low < high <= ends.max + 1,
        OptionError,
        f"random_randint: from {low} to {high}, needs one below the other, {ends.min} to "
        f"{ends.max + 1}",
    )
    out = Spec.dense(extents("random_randint: shape", shape), dtype)
    return Launch(
        out,
        {"key": key},
        threads=vec4s(out.size),
        params={"size": out.size, "low": low % 2**32, "range": (high - low) % 2**32},
        choices={"Value": number.name},
        work=32 * out.size,
    )


@random_randint.reference
def random_randint_reference(
    key: Array, low: int, high: int, shape: Sequence[int] = (), dtype: DType = I32
) -> Array:
    """Draw random integers."""
    # The upper word of a product (Lemire 2019), without his second draws for a fair share.
    bits = words(key, math.prod(shape)).astype(np.uint64)
    return (bits * np.uint64(high - low) >> np.uint64(32)).astype(np.int64).reshape(
        tuple(shape)
    ) + low


def fractions(key: Array, shape: Sequence[int], dtype: DType = F32) -> Array:
    """Draw uniform numbers in [0, 1), f32."""
    bits = words(key, math.prod(shape)).astype(np.float32) * np.float32(2**-32)
    # Rounding to the type could give 1.
    return np.minimum(bits, np.float32(BELOW_ONE[dtype])).reshape(tuple(shape))
