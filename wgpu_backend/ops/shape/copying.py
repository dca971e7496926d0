"""Ops that copy values: contiguous, flip, cast, concat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import BF16, BOOL, COMPLEX64, I64, PLAIN, U64, DType
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, merged_axes
from wgpu_backend.ops.check import normalise_axes, pad_to_4d, require, require_dtype, vec4s
from wgpu_backend.ops.host_values import whole
from wgpu_backend.ops.index.bits import moving, require_plain
from wgpu_backend.ops.index.quantisation import dequantise, quantise
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# Axes that a vector of the shader holds.
FEW_AXES = 4
# What a value is in a register, by the kind of its type: the nearest that WGSL computes with.
_REGISTER = {"f": "f32", "c": "f32", "i": "i32", "u": "u32", "b": "u32"}


def _register(dtype: DType) -> str:
    assert dtype.numpy is not None
    return "f32" if dtype == BF16 else _REGISTER[dtype.numpy.kind]


def _copy_launch(name: str, x: Node, dtype: DType, choices: Mapping[str, str | bool]) -> Launch:
    require_plain(name, "x", x)
    shape, strides = _four_axes(name, x.spec)
    out = Spec.dense(x.spec.shape, dtype)
    params = {
        "size": out.size,
        "shape": pad_to_4d(shape, 1),
        "x_strides": pad_to_4d(strides, 0),
    }
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params=params,
        choices=choices,
        work=x.spec.nbytes + out.nbytes,
    )


def _four_axes(name: str, spec: Spec) -> tuple[Shape, Shape]:
    """Return shape and strides with adjacent axes merged where one stride covers them."""
    if len(spec.shape) <= FEW_AXES:
        return spec.shape, spec.strides
    axes = merged_axes(spec)
    require(
        len(axes) <= FEW_AXES,
        ShapeError,
        f"{name}: x is {spec.shape} of strides {spec.strides}, {len(axes)} axes after joining "
        f"those that step as one, needs at most {FEW_AXES}; call contiguous()",
    )
    return tuple(extent for extent, _ in axes), tuple(stride for _, stride in axes)


@op(trusted=True)
def contiguous(x: Node) -> Launch:
    """Copy `x` to dense, row-major storage.

    Parameters
    ----------
    x : (...), any plain dtype
        Of any strides, up to eight axes; neighbours that step through storage as one count as one.

    Returns
    -------
    Like `x`, dense.

    Raises
    ------
    ShapeError
        There are more axes.
    """
    if len(x.spec.shape) <= FEW_AXES or len(merged_axes(x.spec)) <= FEW_AXES:
        return _copy_launch("contiguous", x, x.spec.dtype, moving(x.spec.dtype, "x"))
    return _by_axes("contiguous", x, x.spec.strides, 0)


@contiguous.reference
def contiguous_reference(x: Array) -> Array:
    """Return a dense copy."""
    return np.asarray(x, order="C")


@op(shader="ops/shape/contiguous_8d", trusted=True)
def flip(x: Node, *, axes: int | Sequence[int] | None = None) -> Launch:
    """Copy `x` with the order of values along axes reversed.

    Parameters
    ----------
    x : (...), any plain dtype
        Of any strides, up to eight axes after joining as in `contiguous`.
    axes : int, sequence of int, or None
        None reverses all.

    Returns
    -------
    Like `x`, dense.

    Raises
    ------
    ShapeError
        There is no such axis, it is named twice, or there are more axes.
    """
    found = normalise_axes("flip", x.spec, axes)
    strides = tuple(-s if a in found else s for a, s in enumerate(x.spec.strides))
    # Reversed axes are read from their last value backwards.
    start = sum((x.spec.shape[a] - 1) * x.spec.strides[a] for a in found)
    return _by_axes("flip", x, strides, start if x.spec.size else 0)


@flip.reference
def flip_reference(x: Array, *, axes: int | Sequence[int] | None = None) -> Array:
    """Reverse axes."""
    return np.flip(x, axes if axes is None or isinstance(axes, int) else tuple(axes))


def _by_axes(name: str, x: Node, strides: Shape, start: int) -> Launch:
    """Return a launch that copies up to eight axes, of any signed strides, from `start` on."""
    require_plain(name, "x", x)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    axes = merged_axes(Spec(x.spec.shape, x.spec.dtype, strides))
    require(
        len(axes) <= 2 * FEW_AXES,
        ShapeError,
        f"{name}: x is {x.spec.shape} of strides {x.spec.strides}, {len(axes)} axes after joining "
        f"those that step as one, needs at most {2 * FEW_AXES}; copy it in between",
    )
    outer, inner = axes[:-FEW_AXES], axes[-FEW_AXES:]
    params = {
        "size": out.size,
        "start": start,
        "inner": math.prod(extent for extent, _ in inner),
        "outer_shape": pad_to_4d(tuple(extent for extent, _ in outer), 1),
        # Negative strides as u32: sums wrap around to the right place.
        "outer_strides": pad_to_4d(tuple(stride % 2**32 for _, stride in outer), 0),
        "inner_shape": pad_to_4d(tuple(extent for extent, _ in inner), 1),
        "inner_strides": pad_to_4d(tuple(stride % 2**32 for _, stride in inner), 0),
    }
    return Launch(
        out,
        {"x": x},
        threads=vec4s(out.size),
        params=params,
        shader="ops/shape/contiguous_8d",
        choices={**moving(out.dtype, "x"), "OUTER": bool(outer)},
        work=2 * out.nbytes,
    )


@op(trusted=True)
def cast(x: Node, *, dtype: DType) -> Launch:
    """Convert to another element type.

    Floats are rounded to nearest even. Converted to integers they lose their fraction, numbers
    beyond the type, infinities too, become the nearest number that it holds, and NaN becomes 0.
    Integers keep their low bits in narrower integers and their value in wider ones, as in NumPy.
    For bool, everything but zero is true. f64 has only the digits of f32 on the way.

    Parameters
    ----------
    x : (...), any plain dtype, or a block format in whole rows
        Up to four axes after joining as in `contiguous`.
    dtype : DType
        Any plain dtype; from f32, f16 and bf16 also q8_0, q4_0, q4_1, q5_0 and q5_1; from block
        formats f32, f16 and bf16.

    Returns
    -------
    Dense tensor of the shape of `x`.

    Raises
    ------
    DTypeError
        From complex64 to anything else, which would lose the imaginary part, or a conversion
        that no kernel does.
    """
    source = x.spec.dtype
    if source.quantised:
        return dequantise(x, dtype)
    if dtype.quantised:
        return quantise(x, dtype)
    require(
        dtype in PLAIN and (source != COMPLEX64 or dtype == COMPLEX64),
        DTypeError,
        f"cast: {source} to {dtype}, needs plain types and no imaginary part to lose",
    )
    if source == dtype:
        # A launch without a shader would run that of `cast`.
        return replace(contiguous.record(x), shader="ops/shape/contiguous")
    # The same 64 bits, so they are copied.
    if {source, dtype} == {I64, U64}:
        return replace(
            _copy_launch("cast", x, dtype, moving(dtype, "x")), shader="ops/shape/contiguous"
        )
    return _copy_launch("cast", x, dtype, _conversion(source, dtype))


@cast.reference
def cast_reference(x: Array, *, dtype: DType) -> Array:
    """Convert by way of a device's register type, which is f32 for floats."""
    if dtype.numpy is None or x.dtype in (dtype.numpy, np.complex64):
        return x
    to_float = dtype == BF16 or dtype.numpy.kind in "fc"
    if to_float or x.dtype.kind == "f":
        x = x.astype(np.float32)
    if dtype == BOOL:
        return x != 0
    return x if to_float else whole(x, dtype.numpy)


def _conversion(source: DType, dtype: DType) -> dict[str, str | bool]:
    """Return the shader choices of the shader that converts between two types."""
    register, target = _register(source), _register(dtype)
    choices: dict[str, str | bool] = {}
    if source in (I64, U64) and (target == "f32" or dtype == BOOL):
        choices["x"], register = f"formats/convert/{source}_as_f32", "f32"
    if dtype == BOOL:
        choices |= {"TRUTH": True, "SIGNED_ZERO": register == "f32"}
    elif dtype in (I64, U64) and register == "f32":
        choices["y"], target = f"formats/convert/{dtype}_of_f32", "f32"
    elif dtype in (I64, U64):
        # The sign of what is widened, and not of the result, says what the high words are.
        choices["y"] = "formats/store/i64" if register == "i32" else "formats/store/u64"
        target = register
    elif register == "f32" and target != "f32":
        choices |= {"convert": f"formats/convert/{target}", **_bounds(dtype)}
    return {"Value": register, "Out": target, **choices}


def _bounds(dtype: DType) -> dict[str, str]:
    """Return the shader constants that clamp numbers to the range of an integer type."""
    assert dtype.numpy is not None
    info = np.iinfo(dtype.numpy.name)
    # What fits a register of that type needs no bounds.
    if dtype.block_nbytes == 4:
        return {}
    return {"MOST": f"{info.max}"} | ({"LEAST": f"{info.min}"} if info.min else {})


@op(dense=("a", "b"), trusted=True)
def concat(a: Node, b: Node, *, axis: int) -> Launch:
    """Join two tensors along an axis.

    Parameters
    ----------
    a : (..., i, ...)
        Any plain dtype.
    b : (..., j, ...)
        All other extents and the dtype as in `a`.

    Returns
    -------
    (..., i + j, ...), the values of `a` first.

    Raises
    ------
    ShapeError
        The extent of an axis other than `axis` differs.
    """
    axis = a.spec.axis(axis, "concat")
    _require_alike(a, b, axis)
    joined = a.spec.shape[axis] + b.spec.shape[axis]
    out = Spec.dense((*a.spec.shape[:axis], joined, *a.spec.shape[axis + 1 :]), a.spec.dtype)
    params = {
        "size": out.size,
        "inner": math.prod(a.spec.shape[axis + 1 :]),
        "a_middle": a.spec.shape[axis],
        "b_middle": b.spec.shape[axis],
    }
    return Launch(
        out,
        {"a": a, "b": b},
        threads=vec4s(out.size),
        params=params,
        choices=moving(out.dtype, "a", "b"),
        work=2 * out.nbytes,
    )


@concat.reference
def concat_reference(a: Array, b: Array, *, axis: int) -> Array:
    """Join along an axis."""
    return np.concatenate([a, b], axis=axis)


def _require_alike(a: Node, b: Node, axis: int) -> None:
    """Check that tensors to be joined differ along that axis alone."""
    rest_a = a.spec.shape[:axis] + a.spec.shape[axis + 1 :]
    rest_b = b.spec.shape[:axis] + b.spec.shape[axis + 1 :]
    require(
        rest_a == rest_b and len(a.spec.shape) == len(b.spec.shape),
        ShapeError,
        f"concat: {a.spec.shape} and {b.spec.shape} differ beyond axis {axis}",
    )
    require_dtype("concat", "b", b, (a.spec.dtype,))
    require_plain("concat", "a", a)
