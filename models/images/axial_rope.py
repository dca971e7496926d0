"""Rotary positions with several axes, each of which rotates a part of a head.

Su et al. 2021, "RoFormer", §3.2.2. FLUX, Z-Image and Qwen-Image encode positions in this way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
Table = NDArray[np.float32]


def axial_rope(places: Places, widths: Sequence[int], theta: float) -> Table:
    """Return the cosines and sines of positions.

    Parameters
    ----------
    places : (tokens, axes), int
    widths : sequence of int
        Number of values of a head that each axis rotates; even.
    theta : float
        Base of the frequencies.

    Returns
    -------
    (tokens, pairs, 2), f32
    """
    angles = [
        np.outer(places[:, axis], theta ** (-np.arange(0, width, 2) / width))
        for axis, width in enumerate(widths)
    ]
    # Angles stay in f64: in f32, those of far positions would lose digits.
    joined = np.concatenate(angles, 1)
    return np.stack([np.cos(joined), np.sin(joined)], -1).astype(np.float32)


def grid_places(starts: Sequence[int], extents: Sequence[int]) -> Places:
    """Return the positions (tokens, axes) of a grid, the last axis fastest."""
    axes = [start + np.arange(extent) for start, extent in zip(starts, extents, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
