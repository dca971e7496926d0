"""Shapes as outlines of half extent about 1, and the share of each pixel that they cover."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

SIDE = 64  # pixels of a picture, either way
HOLE = 0.56  # the inner radius of a ring, of the outer
SCALES = {
    "circle": 1.0,
    "square": 0.9,
    "triangle": 1.06,
    "star": 1.1,
    "ring": 1.03,
    "cross": 1.04,
    "diamond": 1.1,
    "heart": 1.04,
}  # half the larger extent of a shape of radius 1, so that their areas look alike
SHAPES = tuple(SCALES)


def extent(shape: str, radius: float) -> float:
    """Return half the larger extent of a shape of `radius` pixels, in pixels."""
    return SCALES[shape] * radius


@cache
def coverage(shape: str, x: float, y: float, radius: float) -> NDArray[np.float32]:
    """Compute the share of each pixel, (SIDE, SIDE), inside a shape with its middle at (x, y)."""
    half = extent(shape, radius)
    shares = np.zeros((SIDE, SIDE), np.float32)
    left, top = (int(max(0, np.floor(middle - half - 1))) for middle in (x, y))
    right, bottom = (int(min(SIDE, np.ceil(middle + half + 1))) for middle in (x, y))
    rows, columns = np.mgrid[top:bottom, left:right] + 0.5
    inside = -half * _distance(shape, (columns - x) / half, (rows - y) / half)
    shares[top:bottom, left:right] = np.clip(inside + 0.5, 0, 1)
    return shares


def _distance(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the signed distance from the outline of a shape of half extent 1, negative inside."""
    if shape == "circle":
        return np.hypot(x, y) - 1
    if shape == "ring":
        return np.abs(np.hypot(x, y) - (1 + HOLE) / 2) - (1 - HOLE) / 2
    return _polygon_distance(outline(shape), x, y)


def _polygon_distance(
    corners: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the signed distance from a closed polygon; inside by counting crossings of a ray."""
    nearest = np.full(x.shape, np.inf)
    inside = np.zeros(x.shape, bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        along_x, along_y = x1 - x0, y1 - y0
        share = ((x - x0) * along_x + (y - y0) * along_y) / (along_x**2 + along_y**2)
        share = np.clip(share, 0, 1)
        away = (x - x0 - share * along_x) ** 2 + (y - y0 - share * along_y) ** 2
        nearest = np.minimum(nearest, away)
        if y0 != y1:
            inside ^= ((y0 <= y) != (y1 <= y)) & (x < x0 + (y - y0) / along_y * along_x)
    return np.where(inside, -1, 1) * np.sqrt(nearest)


@cache
def outline(shape: str) -> NDArray[np.float64]:
    """Return the corners of a shape, y downwards, with the larger half extent 1 around 0."""
    corners = np.array(_CORNERS[shape]())
    low, high = corners.min(axis=0), corners.max(axis=0)
    return (corners - (low + high) / 2) / ((high - low).max() / 2)


def _around(count: int, radii: tuple[float, ...]) -> list[tuple[float, float]]:
    """Return `count` points around 0 from the top on, with distances in turn from `radii`."""
    angles = 2 * np.pi * np.arange(count) / count
    return [
        (radii[i % len(radii)] * np.sin(angle), -radii[i % len(radii)] * np.cos(angle))
        for i, angle in enumerate(angles)
    ]


def _cross() -> list[tuple[float, float]]:
    arm = 0.34
    quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
    turns = [quarter]
    for _ in range(3):
        turns.append([(-y, x) for x, y in turns[-1]])
    return [corner for turn in turns for corner in turn]


def _heart() -> list[tuple[float, float]]:
    t = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return list(zip(16 * np.sin(t) ** 3, -y, strict=True))


_CORNERS = {
    "square": lambda: [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)],
    "triangle": lambda: _around(3, (1.0,)),
    "star": lambda: _around(10, (1.0, 0.42)),
    "cross": _cross,
    "diamond": lambda: _around(4, (1.0,)),
    "heart": _heart,
}
