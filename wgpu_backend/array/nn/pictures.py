"""What networks over pictures need beside convolutions: other sizes, and times as vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from wgpu_backend.array.conversion import convert
from wgpu_backend.array.core import wrap
from wgpu_backend.array.nn.calls import as_floats, as_singles
from wgpu_backend.array.nn.module import Module
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.ops.conv import resizing, timesteps

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

UpsampleMode = Literal["nearest", "linear", "cubic", "nearest-exact", "bilinear", "bicubic", "area"]
_MODES: tuple[str, ...] = get_args(UpsampleMode)
_CURVES: dict[str, tuple[resizing.ResizeMode, Callable[[float, int], dict[int, float]]]] = {
    "linear": ("bilinear", resizing.between_two),
    "cubic": ("bicubic", resizing.between_four),
}


def resized(
    x: Array,
    height: int,
    width: int,
    mode: resizing.ResizeMode = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
) -> Array:
    """Pictures (n, h, w, c) in another size; see `wgpu_backend.ops.conv.resizing.resize`."""
    node = as_floats("resized", x)
    return wrap(resizing.resize(node, height, width, mode, align_corners, antialias))


class Upsample(Module):
    """Signals, pictures or volumes some times as large along each axis between first and last.

    Parameters
    ----------
    scale_factor : int, float, or a tuple with one for each axis
    mode : str
        ``nearest``, ``linear`` or ``cubic``; for pictures also as `resized` takes it.
    align_corners : bool
        Of linear and cubic: the outermost values stay where they are.
    antialias : bool
        Of linear and cubic: what becomes smaller is filtered.
    """

    def __init__(
        self,
        scale_factor: float | tuple[float, ...],
        mode: UpsampleMode = "nearest",
        align_corners: bool = False,
        antialias: bool = False,
    ) -> None:
        if mode not in _MODES:
            raise OptionError(f"Upsample: mode is {mode!r}, needs one of {[*_MODES]}")
        if antialias and (align_corners or mode not in _CURVES):
            raise OptionError(
                f"Upsample: antialias with mode {mode!r}, align_corners={align_corners}; needs "
                "linear or cubic, and False"
            )
        self.scale_factor, self.align_corners = scale_factor, align_corners
        self.mode: UpsampleMode = mode
        self.antialias = antialias

    def __call__(self, x: Array) -> Array:
        """(n, ..., c) to (n, ... · factor, c), float32."""
        factors = self._factors(x)
        repeats = self.mode == "nearest" and all(int(f) == f for f in factors)
        if self.mode not in _MODES[:3] or (repeats and len(factors) == 2):
            height, width = (int(n * f) for n, f in zip(x.shape[1:-1], factors, strict=True))
            return resized(x, height, width, cast("Any", self.mode), self.align_corners)
        node = convert(as_floats("Upsample", x), F32)
        for axis, factor in enumerate(factors, 1):
            table = resizing.make_table(self._weights(x.shape[axis], factor))
            node = resizing.resample(node, cast("Any", table), axis=axis)
        return wrap(node)

    def _factors(self, x: Array) -> tuple[float, ...]:
        axes = x.ndim - 2
        given = self.scale_factor
        factors = tuple(given) if isinstance(given, tuple | list) else (given,) * axes
        most = 2 if self.mode not in _MODES[:3] else axes
        if axes < 1 or len(factors) != axes or axes > most:
            raise ShapeError(f"Upsample: input is {x.shape}, factors {given}, needs one an axis")
        return factors

    def _weights(self, have: int, factor: float) -> resizing.Weights:
        """Weights of the values along an axis, for each value of the result."""
        want = int(have * factor)
        if want < 1:
            raise ShapeError(f"Upsample: {have} values times {factor}, needs a value at least")
        if self.mode == "nearest":
            grows = want > have
            places = ((i + 0.5) * (have / want) - 0.5 if grows else i * (have / want)
                      for i in range(want))  # fmt: skip
            return [{round(p) if grows else int(p): 1.0} for p in places]
        smooth, between = _CURVES[self.mode]
        if self.antialias:
            return resizing.axis_weights(have, want, smooth, antialias=True)
        step = (have - 1) / max(want - 1, 1) if self.align_corners else 1 / factor
        start = 0.0 if self.align_corners else ((want - 1) * step - have + 1) / 2
        return [between(i * step - start, have) for i in range(want)]


def timestep_embedding(
    t: Array,
    dim: int,
    flip_sin_to_cos: bool = False,
    downscale_freq_shift: float = 1.0,
    scale: float = 1.0,
    max_period: float = 10000.0,
) -> Array:
    """Times (n,) as vectors (n, dim) of sines and cosines.

    See `wgpu_backend.ops.conv.timesteps.timestep_embedding`.
    """
    node = as_singles("timestep_embedding", t)
    return wrap(
        timesteps.timestep_embedding(
            node, dim, flip_sin_to_cos, downscale_freq_shift, scale, max_period
        )
    )
