"""Functions that make arrays: zeros, ones, full, arange, eye."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from wgpu_backend.array import devices
from wgpu_backend.array.base import ArrayBase, make_node, wrap
from wgpu_backend.array.conversion import convert
from wgpu_backend.array.types import INTEGERS, default_dtype, iinfo
from wgpu_backend.dtypes import BF16, BOOL, F16, F32, I32, I64, DType, as_dtype, f32_to_bf16
from wgpu_backend.errors import DeviceError, DTypeError, OptionError
from wgpu_backend.graph.spec import Extents, Shape, Spec, extents
from wgpu_backend.ops.elementwise.launches import WIDE
from wgpu_backend.ops.shape import creation as ops
from wgpu_backend.ops.shape import triangular
from wgpu_backend.ops.shape.views import make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

# Numbers from here on do not fit the parameters of the op, which are i32.
LARGE = 2**31


def asarray(
    values: Any,
    /,
    dtype: Any = None,
    *,
    device: object = None,
    copy: bool | None = None,
) -> Array:
    """Return an array of values; an array of the right type and device is not copied."""
    from wgpu_backend.array.manipulation import astype

    if not isinstance(values, ArrayBase):
        return wrap(make_node(values, None if dtype is None else as_dtype(dtype), device))
    own = cast("Array", values)
    moved = own if device is None else own.to_device(devices.on(device))
    return astype(moved, moved.dtype if dtype is None else dtype, copy=bool(copy))


def full(
    shape: Extents,
    fill_value: Any,
    dtype: Any = None,
    *,
    device: object = None,
) -> Array:
    """Return an array that has one value everywhere: a view of it.

    Parameters
    ----------
    shape : int or sequence of int
    fill_value : number, or array that broadcasts to the shape
    dtype : DType or None
        None is the type of the value.
    """
    wanted = extents("full", shape)
    # Raises ShapeError for negative extents.
    Spec.dense(wanted, F32)
    from wgpu_backend.array.manipulation import astype, broadcast_to

    if isinstance(fill_value, ArrayBase):
        given = wrap(fill_value.node)
        return broadcast_to(given if dtype is None else astype(given, dtype), wanted)
    host = np.asarray(fill_value)
    kind = default_dtype(host.dtype) if dtype is None else as_dtype(dtype)
    node = devices.on(device).constant(_bytes(host, kind), kind, host.shape)
    # One value in memory, with strides of 0.
    return broadcast_to(wrap(make_view(node, node.spec)), wanted)


def _bytes(host: np.ndarray[Any, Any], kind: DType) -> bytes:
    with np.errstate(all="ignore"):
        stored = f32_to_bf16(host) if kind == BF16 else host.astype(kind.numpy)
    return np.ascontiguousarray(stored).tobytes()


def zeros(shape: Extents, dtype: Any = None, *, device: object = None) -> Array:
    """Return an array of zeros, float32 by default."""
    return full(shape, 0, F32 if dtype is None else dtype, device=device)


def ones(shape: Extents, dtype: Any = None, *, device: object = None) -> Array:
    """Return an array of ones, float32 by default."""
    return full(shape, 1, F32 if dtype is None else dtype, device=device)


def empty(shape: Extents, dtype: Any = None, *, device: object = None) -> Array:
    """Return an array of arbitrary values: zeros."""
    return zeros(shape, dtype, device=device)


def _like(x: Array, dtype: Any, device: object) -> tuple[Shape, Any, object]:
    return x.shape, x.dtype if dtype is None else dtype, x.session if device is None else device


def zeros_like(x: Array, /, dtype: Any = None, *, device: object = None) -> Array:
    """Return zeros in the shape and type of an array."""
    shape, kind, where = _like(x, dtype, device)
    return zeros(shape, kind, device=where)


def ones_like(x: Array, /, dtype: Any = None, *, device: object = None) -> Array:
    """Return ones in the shape and type of an array."""
    shape, kind, where = _like(x, dtype, device)
    return ones(shape, kind, device=where)


def empty_like(x: Array, /, dtype: Any = None, *, device: object = None) -> Array:
    """Return an array of arbitrary values in the shape and type of another."""
    return zeros_like(x, dtype, device=device)


def full_like(
    x: Array,
    /,
    fill_value: Any,
    dtype: Any = None,
    *,
    device: object = None,
) -> Array:
    """Return one value in the shape and type of an array."""
    shape, kind, where = _like(x, dtype, device)
    return full(shape, fill_value, kind, device=where)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    dtype: Any = None,
    *,
    device: object = None,
) -> Array:
    """Return values from `start` in steps up to `stop`, excluded; from 0 with one number.

    Parameters
    ----------
    start, stop, step : int or float
    dtype : DType or None
        None is int32 for whole numbers of Python, else float32.
    """
    begin, end = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(v, int | np.integer) for v in (begin, end, step))
    kind = (I32 if whole else F32) if dtype is None else as_dtype(dtype)
    numbers = {"start": begin, "stop": end, "step": step}
    if kind in INTEGERS and not whole:
        # NumPy truncates fractions of the results; the op would truncate the step.
        return wrap(make_node(np.arange(begin, end, step), kind, device))
    if kind in WIDE and step and max(map(abs, (begin, end, step))) >= LARGE:
        return _wide_range(range(int(begin), int(end), int(step)), kind, device)
    # The op has no bool: numbers first, then whether they are 0.
    first = F32 if kind == BOOL else kind
    return wrap(convert(ops.arange.add_to(devices.on(device), **numbers, dtype=first), kind))


def _wide_range(numbers: range, kind: DType, device: object) -> Array:
    """Return a range of numbers that need more than 32 bits."""
    limits = iinfo(kind)
    for number in (*numbers[:1], *numbers[-1:]):
        if not limits.min <= number <= limits.max:
            raise DTypeError(
                f"arange: {number} does not fit {kind}, which holds whole numbers {limits.min} to "
                f"{limits.max}"
            )
    if not numbers:
        return zeros(0, kind, device=device)
    # Integers of 64 bits wrap around, so a step below 0 is added modulo 2⁶⁴.
    begin, step = (n if kind == I64 else n % 2**64 for n in (numbers[0], numbers.step))
    return arange(len(numbers), dtype=kind, device=device) * step + begin


def linspace(
    start: float,
    stop: float,
    /,
    num: int = 50,
    dtype: Any = None,
    *,
    endpoint: bool = True,
    device: object = None,
) -> Array:
    """Return evenly spaced values from `start` to `stop`, float32 by default."""
    kind = F32 if dtype is None else as_dtype(dtype)
    # The op computes floats only.
    first = kind if kind in (F32, F16, BF16) else F32
    made = ops.linspace.add_to(
        devices.on(device), start=start, stop=stop, num=num, endpoint=endpoint, dtype=first
    )
    return wrap(convert(made, kind))


def eye(
    n: int,
    m: int | None = None,
    /,
    k: int = 0,
    dtype: Any = None,
    *,
    device: object = None,
    **named: int | None,
) -> Array:
    """Return a matrix of ones on diagonal `k`, float32 by default; `k` above 0 is above the main.

    The number of columns is that of rows by default; ``m=`` is MLX's name for it, and ``n_cols=``
    the array API's.
    """
    kind = F32 if dtype is None else as_dtype(dtype)
    for name in ("m", "n_cols"):
        m = named.pop(name, m)
    if named:
        raise OptionError(f"eye: {', '.join(named)} is not an argument; columns are m=, or n_cols=")
    cols = n if m is None else m
    return wrap(ops.eye.add_to(devices.on(device), rows=n, cols=cols, k=k, dtype=kind))


def identity(n: int, dtype: Any = None, *, device: object = None) -> Array:
    """Return a square matrix of ones on its diagonal."""
    return eye(n, dtype=dtype, device=device)


def tri(
    n: int, m: int | None = None, k: int = 0, dtype: Any = None, *, device: object = None
) -> Array:
    """Return a matrix of ones up to a diagonal, and zeros; float32 by default."""
    whole = ones((n, n if m is None else m), dtype, device=device)
    return wrap(triangular.tril(whole.node, k))


def meshgrid(*arrays: Array, indexing: str = "xy", sparse: bool = False) -> tuple[Array, ...]:
    """Return views of axes as the coordinates of all points of a grid.

    Parameters
    ----------
    *arrays : (n,)
    indexing : str
        With ``xy`` the first axis of results is that of the second array, with ``ij`` of the first.
    sparse : bool
        Leave axes of 1 instead of repeating values.
    """
    from wgpu_backend.array.manipulation import broadcast_arrays, swapaxes

    if indexing not in ("xy", "ij"):
        raise OptionError(f"meshgrid: indexing is {indexing!r}, needs 'xy' or 'ij'")
    rank = len(arrays)
    placed = [
        x.reshape(*(x.size if a == at else 1 for a in range(rank))) for at, x in enumerate(arrays)
    ]
    if indexing == "xy" and rank > 1:
        placed = [swapaxes(x, 0, 1) for x in placed]
    return tuple(placed) if sparse else broadcast_arrays(*placed)


def from_dlpack(x: Any, /, *, device: object = None, copy: bool | None = None) -> Array:
    """Return an array of an object with ``__dlpack__``, copied through the host."""
    if isinstance(x, ArrayBase):
        return asarray(x, device=device, copy=copy)
    if copy is False:
        raise DeviceError("from_dlpack: values are copied to a device, copy=False forbids it")
    return wrap(make_node(np.from_dlpack(x), None, device))
