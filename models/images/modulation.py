"""Norms whose shift and scale are made of the time.

Peebles & Xie 2023, "Scalable Diffusion Models with Transformers", §3.2, adaLN.
"""

from __future__ import annotations

import wgpu_backend.array as wx
from wgpu_backend.array import nn

EPS = 1e-6  # of norms that are modulated


class Modulation(nn.Module):
    """Vectors made of the time: shifts, scales and gates.

    Parameters
    ----------
    width : int
    count : int
        How many vectors.
    bias : bool
    """

    def __init__(self, width: int, count: int, bias: bool = True) -> None:
        self.linear = nn.Linear(width, count * width, bias)
        self._count = count

    def __call__(self, time: wx.Array) -> list[wx.Array]:
        """Vectors (n, 1, width) of times (n, width)."""
        return self.linear(nn.silu(time))[:, None].split(self._count, axis=-1)


class ModulatedNorm(nn.Module):
    """The norm in front of the last product, with a scale and a shift of the time."""

    def __init__(self, width: int, bias: bool = True) -> None:
        self.linear = nn.Linear(width, 2 * width, bias)
        self._norm = plain_norm(width)

    def __call__(self, x: wx.Array, time: wx.Array) -> wx.Array:
        """(n, tokens, width) and (n, width) to (n, tokens, width)."""
        scale, shift = self.linear(nn.silu(time))[:, None].split(2, axis=-1)
        return modulated(self._norm(x), shift, scale)


def modulated(x: wx.Array, shift: wx.Array, scale: wx.Array) -> wx.Array:
    """Tokens as the time wants them."""
    return x * (1.0 + scale) + shift


def plain_norm(width: int) -> nn.LayerNorm:
    """Norm without weights."""
    return nn.LayerNorm(width, EPS, affine=False)
