"""Fourier transforms, as the array API's extension and ``mx.fft`` have them: ``wx.fft``.

Computed on the device in complex64: lengths whose prime factors are at most 13 in passes of up to
32 values, others as a convolution of a power of two (Bluestein 1970). Errors are about 1e-6 of the
root mean square of results. Integers and other floats are converted to float32 first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.array.base import constant, wrap
from wgpu_backend.array.complexes import make_complex
from wgpu_backend.array.conversion import convert, join_parts
from wgpu_backend.array.creation import asarray, zeros
from wgpu_backend.array.elementwise import conj, imag, real
from wgpu_backend.array.manipulation import concat, flip, moveaxis, roll
from wgpu_backend.array.promotion import as_node, is_complex, normalise_axis, to_floats
from wgpu_backend.dtypes import COMPLEX64, F32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.fft.passes import factor_length, fft_pass, unity_roots
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.views import make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

Axes = int | Sequence[int] | None
# hfft is an inverse transform without conjugates, so its normalisation is the other one.
_SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def fft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Compute the discrete Fourier transform along an axis, complex64.

    Parameters
    ----------
    x : (...), any numbers
    n : int or None
        Length of the transform: further values are dropped, missing ones are zeros. None is all.
    norm : str
        ``backward`` divides the inverse by `n`, ``forward`` this transform, ``ortho`` both by the
        square root of `n`.
    """
    return _transform("fft", x, n, axis, norm, inverse=False)


def ifft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Compute the inverse of `fft`."""
    return _transform("ifft", x, n, axis, norm, inverse=True)


def rfft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Compute the first half of `fft` of real numbers, ``n // 2 + 1`` values."""
    if is_complex(as_node("rfft", x)):
        # Raises DTypeError: the other half would be lost.
        to_floats(x.node)
    found = _transform("rfft", x, n, axis, norm, inverse=False)
    return _resize("rfft", found, found.shape[axis] // 2 + 1, axis)


def irfft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Compute the inverse of `rfft`: `n` real numbers, an even number where `n` is None."""
    node = as_node("irfft", x)
    at = normalise_axis("irfft", node, axis)
    count = 2 * (node.spec.shape[at] - 1) if n is None else n
    _require_length("irfft", count)
    half = moveaxis(_resize("irfft", _complex("irfft", x), count // 2 + 1, at), at, -1)
    # The other half of the spectrum of real numbers: conjugates in reverse order.
    rest = conj(flip(half[..., 1 : (count + 1) // 2], axis=-1))
    whole = concat([half, rest], axis=-1)
    return moveaxis(real(_transform("irfft", whole, None, -1, norm, inverse=True)), -1, at)


def hfft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Compute `fft` of values whose other half are conjugates: `n` real numbers."""
    return irfft(conj(_complex("hfft", x)), n, axis, _swap_norm("hfft", norm))


def ihfft(x: Array, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Compute the inverse of `hfft`: the first half, ``n // 2 + 1`` values."""
    return conj(rfft(x, n, axis, _swap_norm("ihfft", norm)))


def fftn(
    x: Array, /, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Array:
    """Compute `fft` along several axes: `axes`, or the last ones for lengths `s`, or all."""
    return _along_axes("fftn", fft, x, s, axes, norm)


def ifftn(
    x: Array, /, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Array:
    """Compute the inverse of `fftn`."""
    return _along_axes("ifftn", ifft, x, s, axes, norm)


def rfftn(
    x: Array, /, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Array:
    """Compute `rfft` along the last of several axes, then `fft` along the others."""
    lengths, places = _lengths_and_axes("rfftn", x, s, axes)
    found = rfft(x, lengths[-1], places[-1], norm)
    return _along_axes("rfftn", fft, found, lengths[:-1], places[:-1], norm)


def irfftn(
    x: Array, /, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward"
) -> Array:
    """Compute the inverse of `rfftn`: real numbers; without `s` the last axis has an even size."""
    lengths, places = _lengths_and_axes("irfftn", x, s, axes)
    found = _along_axes("ifftn", ifft, x, lengths[:-1], places[:-1], norm)
    return irfft(found, None if s is None else lengths[-1], places[-1], norm)


def _over_two_axes(transform: Callable[..., Array], name: str) -> Callable[..., Array]:
    def function(
        x: Array,
        /,
        s: Sequence[int] | None = None,
        axes: Sequence[int] = (-2, -1),
        norm: str = "backward",
    ) -> Array:
        return transform(x, s, axes, norm)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Compute `{transform.__name__}` along two axes, the last by default."
    return function


fft2, ifft2 = _over_two_axes(fftn, "fft2"), _over_two_axes(ifftn, "ifft2")
rfft2, irfft2 = _over_two_axes(rfftn, "rfft2"), _over_two_axes(irfftn, "irfft2")


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: object = None) -> Array:
    """Return the frequencies of `fft` for values that lie `d` apart, float32."""
    _require_length("fftfreq", n)
    return asarray(np.fft.fftfreq(n, d).astype(np.float32), dtype, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: object = None) -> Array:
    """Return the frequencies of `rfft` for values that lie `d` apart, float32."""
    _require_length("rfftfreq", n)
    return asarray(np.fft.rfftfreq(n, d).astype(np.float32), dtype, device=device)


def fftshift(x: Array, /, *, axes: Axes = None) -> Array:
    """Move frequency 0 to the middle of axes."""
    return _shift("fftshift", x, axes, lambda extent: extent // 2)


def ifftshift(x: Array, /, *, axes: Axes = None) -> Array:
    """Undo `fftshift`."""
    return _shift("ifftshift", x, axes, lambda extent: -(extent // 2))


def _shift(name: str, x: Array, axes: Axes, by: Callable[[int], int]) -> Array:
    node = as_node(name, x)
    given = range(x.ndim) if axes is None else extents(f"{name}: axes", axes)
    places = [normalise_axis(name, node, a) for a in given]
    return roll(x, tuple(by(x.shape[a]) for a in places), tuple(places)) if places else wrap(node)


def _swap_norm(name: str, norm: str) -> str:
    if norm not in _SWAPPED:
        raise OptionError(f"{name}: norm is {norm!r}, needs one of {[*_SWAPPED]}")
    return _SWAPPED[norm]


def _require_length(name: str, n: int) -> None:
    if n < 1:
        raise ShapeError(f"{name}: n is {n}, needs 1 or more")


def _lengths_and_axes(
    name: str, x: Array, s: Sequence[int] | None, axes: Axes
) -> tuple[list[int], list[int]]:
    """Return the lengths and axes to transform, in order."""
    node = as_node(name, x)
    if axes is None:
        given = range(x.ndim) if s is None else range(-len(s), 0)
    else:
        given = extents(f"{name}: axes", axes)
    places = [normalise_axis(name, node, a) for a in given]
    lengths = [x.shape[a] for a in places] if s is None else list(s)
    if len(lengths) != len(places) or (not places and name.startswith(("r", "ir"))):
        raise ShapeError(
            f"{name}: s is {s}, axes are {axes} of {x.shape}, needs one length for each axis"
        )
    return lengths, places


def _along_axes(
    name: str,
    transform: Callable[..., Array],
    x: Array,
    s: Sequence[int] | None,
    axes: Axes,
    norm: str,
) -> Array:
    for length, axis in zip(*_lengths_and_axes(name.lstrip("r"), x, s, axes), strict=True):
        x = transform(x, length, axis, norm)
    return _complex(name, x)


def _complex(name: str, x: Array) -> Array:
    """Return an array as complex64."""
    node = as_node(name, x)
    if is_complex(node):
        return wrap(node)
    values = convert(node, F32)
    dense = values if values.spec.is_dense else contiguous(values)
    return make_complex(wrap(dense), zeros(node.spec.shape, device=x.session))


def _resize(name: str, x: Array, n: int, axis: int) -> Array:
    """Cut an axis to `n` values, or append zeros."""
    at = normalise_axis(name, as_node(name, x), axis)
    have = x.shape[at]
    if n <= have:
        return x if n == have else x[(*[slice(None)] * at, slice(0, n))]
    more = (*x.shape[:at], n - have, *x.shape[at + 1 :])
    return concat([x, zeros(more, x.dtype, device=x.session)], axis=at)


def _transform(name: str, x: Array, n: int | None, axis: int, norm: str, *, inverse: bool) -> Array:
    node = as_node(name, x)
    at = normalise_axis(name, node, axis)
    length = node.spec.shape[at] if n is None else n
    _require_length(name, length)
    _swap_norm(name, norm)
    rows = moveaxis(_complex(name, _resize(name, x, length, at)), at, -1)
    if not rows.size:
        return moveaxis(rows, -1, at)
    # True: divide by n here; False: do not; None: ortho.
    whole = {"backward": inverse, "forward": not inverse}.get(norm)
    scale = 1 / math.sqrt(length) if whole is None else 1 / length if whole else 1.0
    pairs = _pairs(rows.node, length)
    found = _transform_rows(pairs, inverse=inverse, scale=scale)
    made_of = make_view(found, Spec.dense(rows.shape, COMPLEX64))
    return moveaxis(wrap(made_of), -1, at)


def _pairs(x: Node, length: int) -> Node:
    """Return complex rows as (rows, length, 2) of float32."""
    dense = x if x.spec.is_dense else contiguous(x)
    shape = (x.spec.size // length, length, 2)
    return make_view(dense, Spec(shape, F32, (2 * length, 2, 1), 2 * dense.spec.offset))


def _transform_rows(x: Node, *, inverse: bool, scale: float) -> Node:
    """Transform of (rows, length, 2)."""
    length = x.spec.shape[1]
    radices = factor_length(length)
    # A prime factor above 13.
    if radices is None:
        return _transform_by_chirps(x, inverse=inverse, scale=scale)
    session: Any = x.builder
    table = constant(session, unity_roots(length), F32)
    done = 1
    for radix in radices:
        last = done * radix == length
        x = fft_pass(
            x,
            table,
            radix=radix,
            done=done,
            # The inverse transform is the forward one with real and imaginary parts exchanged on
            # both ends.
            swap_in=inverse and done == 1,
            swap_out=inverse and last,
            # The factor is multiplied in the last pass, so it costs no pass of its own.
            scale=scale if last else 1.0,
        )
        done *= radix
    return x


# The transform of a chirp costs as much as that of the values; calls repeat lengths.
@lru_cache(maxsize=4)
def _chirps(length: int, size: int, inverse: bool) -> tuple[NDArray[np.complex64], ...]:
    """Return a chirp, and the transform of its conjugate on both sides of 0."""
    sign = 1 if inverse else -1
    # Squares are taken modulo a full rotation: float64 loses the fraction of large squares.
    chirp = np.exp(sign * 1j * np.pi / length * (np.arange(length) ** 2 % (2 * length)))
    around = np.zeros(size, np.complex128)
    around[:length] = chirp.conj()
    around[size - length + 1 :] = chirp[:0:-1].conj()
    return chirp.astype(np.complex64), (np.fft.fft(around) / size).astype(np.complex64)


def _transform_by_chirps(x: Node, *, inverse: bool, scale: float) -> Node:
    """Transform by a convolution with a chirp, whose length is a power of two (Bluestein 1970)."""
    rows, length, _ = x.spec.shape
    # A cyclic convolution of at least 2 n - 1 values does not wrap around.
    size = 1 << (2 * length - 2).bit_length()
    session: Any = x.builder
    chirp, spread = (
        wrap(constant(session, values, COMPLEX64)) for values in _chirps(length, size, inverse)
    )
    values = wrap(make_view(x, Spec(x.spec.shape[:2], COMPLEX64, (length, 1), x.spec.offset // 2)))
    padded = _resize("fft", values * chirp, size, -1)
    forward = wrap(
        make_view(
            _transform_rows(_pairs(padded.node, size), inverse=False, scale=1.0),
            Spec.dense((rows, size), COMPLEX64),
        )
    )
    folded = _transform_rows(_pairs((forward * spread).node, size), inverse=True, scale=1.0)
    found = wrap(make_view(folded, Spec((rows, length), COMPLEX64, (size, 1)))) * chirp
    parts = (contiguous((part(found) * scale).node) for part in (real, imag))
    return _pairs(join_parts(*parts), length)
