"""Colour maps for numbers."""

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
# Dark to bright, and blue over black to orange; equal steps look about equal.
GLOW = ((8, 8, 16), (56, 20, 92), (140, 36, 100), (216, 80, 64), (250, 160, 48), (252, 248, 190))
SIGNED = ((120, 200, 255), (40, 96, 190), (12, 14, 24), (200, 84, 20), (255, 200, 120))


def coloured(values: NDArray[np.floating], palette: tuple[tuple[int, ...], ...]) -> Picture:
    """Map numbers from 0 to 1 to colours: (…,) to (…, 3)."""
    stops = np.linspace(0, 1, len(palette))
    channels = np.asarray(palette, np.float64).T
    mixed = [np.interp(np.clip(values, 0, 1), stops, channel) for channel in channels]
    return np.stack(mixed, axis=-1).astype(np.uint8)


def glowing(values: NDArray[np.floating]) -> Picture:
    """Map 0 to dark and 1 to bright."""
    return coloured(values, GLOW)


def signed(values: NDArray[np.floating]) -> Picture:
    """Map -1 to blue, 0 to black and 1 to orange."""
    return coloured((values + 1) / 2, SIGNED)
