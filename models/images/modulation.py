"""Norms whose shift and scale are computed from the timestep.

Peebles & Xie 2023, "Scalable Diffusion Models with Transformers", §3.2, adaLN.
"""

from __future__ import annotations

import wgpu_backend.array as wx
from wgpu_backend.array import nn

# Epsilon of modulated norms.
EPS = 1e-6


class Modulation(nn.Module):
    """The vectors computed from the timestep: shifts, scales and gates.

    Parameters
    ----------
    count : int
        Number of vectors.
    """

    def __init__(self, width: int, count: int, bias: bool = True) -> None:
        self.linear = nn.Linear(width, count * width, bias)
        self._count = count

    def __call__(self, time: wx.Array) -> list[wx.Array]:
        """Return the vectors, (n, 1, width) each, of timesteps (n, width)."""
        return self.linear(nn.silu(time))[:, None].split(self._count, axis=-1)


class ModulatedNorm(nn.Module):
    """The norm before the last linear layer, with the timestep's scale and shift."""

    def __init__(self, width: int, bias: bool = True) -> None:
        self.linear = nn.Linear(width, 2 * width, bias)
        self._norm = make_plain_norm(width)

    def __call__(self, x: wx.Array, time: wx.Array) -> wx.Array:
        """Map (n, tokens, width) and (n, width) to (n, tokens, width)."""
        # Checkpoints have the scale's rows first here, and the shift's first in blocks.
        scale, shift = self.linear(nn.silu(time))[:, None].split(2, axis=-1)
        return modulate(self._norm(x), shift, scale)


def modulate(x: wx.Array, shift: wx.Array, scale: wx.Array) -> wx.Array:
    """Normalise tokens, then scale and shift them."""
    # Scales are differences to 1, so that weights of 0 leave the norm as it is.
    return x * (1.0 + scale) + shift


def make_plain_norm(width: int) -> nn.LayerNorm:
    """Make a layer norm without weights."""
    return nn.LayerNorm(width, EPS, affine=False)
