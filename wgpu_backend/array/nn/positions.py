"""Positions of tokens: as waves of several lengths, and as a bias of attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.creation import asarray
from wgpu_backend.array.elementwise import cos, sin
from wgpu_backend.array.nn.module import Module
from wgpu_backend.array.shaping import concat, expand_dims
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import OptionError

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


class SinusoidalPositionalEncoding(Module):
    """Positions as sines and cosines (Vaswani et al. 2017, §3.5).

    Parameters
    ----------
    dims : int
        Values of a position, an even number.
    min_freq, max_freq : float
        Radians that the slowest and the fastest wave turn from one position to the next.
    scale : float or None
        Factor of results; None is ``sqrt(2 / dims)``.
    cos_first : bool
        Cosines stand before sines.
    full_turns : bool
        Frequencies count turns.
    """

    def __init__(
        self,
        dims: int,
        min_freq: float = 0.0001,
        max_freq: float = 1,
        scale: float | None = None,
        cos_first: bool = False,
        full_turns: bool = False,
    ) -> None:
        if dims < 2 or dims % 2:
            raise OptionError(
                f"SinusoidalPositionalEncoding: {dims} dims, needs an even number, 2 or more"
            )
        waves = np.geomspace(max_freq, min_freq, dims // 2) if dims > 2 else np.array([max_freq])
        self._frequencies = (waves * (2 * math.pi if full_turns else 1)).astype(np.float32)
        self.scale = math.sqrt(2 / dims) if scale is None else scale
        self.cos_first = cos_first

    def __call__(self, x: Array) -> Array:
        """(...) positions to (..., dims)."""
        angles = expand_dims(x, -1) * asarray(self._frequencies, device=x.session)
        waves = [cos(angles), sin(angles)] if self.cos_first else [sin(angles), cos(angles)]
        return concat(waves, axis=-1) * self.scale


class ALiBi(Module):
    """Scores of attention less the distance of tokens, by a slope a head (Press et al. 2022)."""

    @staticmethod
    def create_alibi_slope(num_heads: int, dtype: Any = F32) -> Array:
        """Slopes (heads, 1, 1): powers of two from 2^(-8 / heads) on."""
        whole = 2 ** int(math.log2(num_heads))
        slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
        # Heads beyond a power of two take every other slope of twice as many.
        slopes += [2 ** (-4 * (2 * i + 1) / whole) for i in range(num_heads - whole)]
        return asarray(np.array(slopes, np.float32).reshape(-1, 1, 1), dtype)

    @staticmethod
    def create_alibi_matrix(
        q_sequence_length: int,
        k_sequence_length: int,
        num_heads: int,
        offset: int = 0,
        dtype: Any = F32,
    ) -> Array:
        """Biases (1, heads, queries, keys); queries are those from `offset` on."""
        queries = np.arange(offset, q_sequence_length).reshape(-1, 1)
        far = -np.abs(queries - np.arange(k_sequence_length)).astype(np.float32)
        return (asarray(far[None, None]) * ALiBi.create_alibi_slope(num_heads)).astype(dtype)

    def __call__(
        self, attention_scores: Array, offset: int = 0, mask: Array | None = None
    ) -> Array:
        """(n, heads, queries, keys) to the same, with a mask added where there is one."""
        queries, keys = attention_scores.shape[-2:]
        bias = self.create_alibi_matrix(
            queries + offset, keys, attention_scores.shape[1], offset, attention_scores.dtype
        ).to_device(attention_scores.session)
        return attention_scores + (bias if mask is None else bias + mask)
