"""Extents of convolutions and windows: padding, strides, dilations."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.spec import Shape, extents
from wgpu_backend.ops.check import require

AXES = ("depth", "height", "width")
# The most values of an axis, zeros between them included: indices below 0 wrap around in u32.
MOST = 2**31
# On both sides, or before and after.
Padding = int | tuple[int, int]


def wide_extents(x: Shape, spread: Sequence[int]) -> Shape:
    """Return the extents of values with zeros between them; `spread` is the step between values."""
    # No zeros follow the last value.
    return tuple((n - 1) * s + 1 if n else 0 for n, s in zip(x, spread, strict=True))


def padded_sides(paddings: Sequence[Padding]) -> list[tuple[int, int]]:
    """Return the padding before and after each axis.

    Raises
    ------
    ShapeError
        A padding is neither a whole number nor a pair of them.
    """
    found: list[tuple[int, int]] = []
    for padding in paddings:
        sides = extents("convolve: padding", padding)
        require(len(sides) in (1, 2), ShapeError, f"convolve: padding {sides}, needs one or two")
        found.append((sides[0], sides[-1]))
    return found


def result_extents(
    x: Shape,
    kernel: Shape,
    strides: Sequence[int],
    paddings: Sequence[tuple[int, int]],
    dilations: Sequence[int],
) -> Shape:
    """Return the result's extents; the arguments are for the last of depth, height and width."""
    found: list[int] = []
    names = AXES[-len(x) :]
    for name, n, k, s, p, d in zip(names, x, kernel, strides, paddings, dilations, strict=True):
        require(
            s > 0 and d > 0 and k > 0 and n < MOST,
            ShapeError,
            f"convolve: along the {name} kernel {k}, stride {s}, dilation {d}; needs 1 or more, "
            f"and {n} values, at most {MOST - 1}",
        )
        reach = d * (k - 1) + 1
        require(
            reach <= n + sum(p),
            ShapeError,
            f"convolve: the kernel reaches over {reach} values, padded {name} has {n + sum(p)}",
        )
        found.append((n + sum(p) - reach) // s + 1)
    return tuple(found)


def require_paddings(paddings: Sequence[Padding]) -> None:
    """Raise ShapeError if a padding is negative."""
    for name, sides in zip(AXES[-len(paddings) :], padded_sides(paddings), strict=True):
        require(
            min(sides) >= 0,
            ShapeError,
            f"convolve: along the {name} padding {min(sides)}, needs 0 or more",
        )
