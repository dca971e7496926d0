"""What networks over pictures need beside convolutions: other sizes, and times as vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wgpu_backend.array.core import wrap
from wgpu_backend.array.nn.calls import floats, singles
from wgpu_backend.array.nn.module import Module
from wgpu_backend.ops.conv import resizing, timesteps

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def resized(
    x: Array,
    height: int,
    width: int,
    mode: resizing.ResizeMode = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
) -> Array:
    """Pictures (n, h, w, c) in another size; see `wgpu_backend.ops.conv.resizing.resize`."""
    node = floats("resized", x)
    return wrap(resizing.resize(node, height, width, mode, align_corners, antialias))


class Upsample(Module):
    """Pictures some times as large.

    Parameters
    ----------
    scale_factor : int or float
    mode : str
        As `resized` takes it.
    align_corners : bool
        Of smooth modes: the outermost pixels stay where they are.
    """

    def __init__(
        self,
        scale_factor: float,
        mode: resizing.ResizeMode = "nearest",
        align_corners: bool = False,
    ) -> None:
        self.scale_factor, self.align_corners = scale_factor, align_corners
        self.mode: resizing.ResizeMode = mode

    def __call__(self, x: Array) -> Array:
        """(n, h, w, c) to (n, h · factor, w · factor, c), float32."""
        height, width = (int(extent * self.scale_factor) for extent in x.shape[1:3])
        return resized(x, height, width, self.mode, self.align_corners)


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
    node = singles("timestep_embedding", t)
    return wrap(
        timesteps.timestep_embedding(
            node, dim, flip_sin_to_cos, downscale_freq_shift, scale, max_period
        )
    )
