"""Searches for the scale, and the minimum, of least rounding error for a group of values.

Groups are columns: values are (size, groups), so every step of a search is one operation on whole
rows. Sums run over axis 0 in order, in f32, and products are evaluated from the left, as in
llama.cpp; a search that differs in the last bit may end in another scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Groups whose values are all smaller count as zeros (llama.cpp: GROUP_MAX_EPS).
_NOTHING = np.float32(1e-15)


def total(values: Floats) -> Floats:
    """Sum over axis 0 in order; NumPy would add pairwise for short rows."""
    if values[0].size > 1:
        return np.add.reduce(values, axis=0)
    return np.add.accumulate(values, axis=0)[-1]


def ratio(a: Floats, b: Floats) -> Floats:
    """Return ``a / b``, and 0 where `b` is 0."""
    return np.where(b != 0, a / b, np.float32(0))


def reciprocal(values: Floats) -> Floats:
    """Return ``1 / value``, and 0 where the value is 0."""
    return np.where(values != 0, 1 / values, np.float32(0))


def round_clip(values: Floats, low: int, high: int) -> Floats:
    """Round to whole numbers from `low` to `high`, ties to even; NaN becomes `low`."""
    np.rint(values, out=values)
    np.fmax(values, np.float32(low), out=values)
    return np.fmin(values, np.float32(high), out=values)


def half_away(values: Floats) -> Floats:
    """Round to whole numbers, ties away from zero."""
    whole = np.trunc(values)
    return whole + np.trunc(2 * (values - whole))


def peak(values: Floats) -> Floats:
    """Return the first value of the largest magnitude of each group; 0 has no sign."""
    place = np.abs(values).argmax(axis=0)
    return np.take_along_axis(values, place[None], axis=0)[0] + np.float32(0)


def lowest(values: Floats) -> Floats:
    """Return the first of the smallest values of each group; 0 and -0 are equal."""
    return np.take_along_axis(values, values.argmin(axis=0)[None], axis=0)[0]


def symmetric(x: Floats, weights: Floats, steps: int) -> tuple[Floats, Floats]:
    """Find scale and quants of ``scale · (quant - steps)`` with the least error among 19 scales.

    Parameters
    ----------
    x : (size, groups), f32
        Values of the groups.
    weights : (size, groups), f32
        Weights of the squared errors.
    steps : int
        Quants are 0 to ``2 · steps - 1``.

    Returns
    -------
    scale : (groups,), f32
        Scale of each group.
    quants : (size, groups), f32
        Whole numbers.
    """
    top, weighted = peak(x), weights * x
    quants = round_clip(-np.float32(steps) / top * x, -steps, steps - 1)
    along, square = _products(weighted, weights, quants)
    scale = ratio(along, square)
    # With the best scale for given quants, the error is a constant minus along² / square, which
    # is this product: the largest one has the least error.
    best = scale * along
    # The scales that llama.cpp's `make_qx_quants` tries: tenths of a step to both sides.
    for step in (*range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(steps) + np.float32(0.1) * np.float32(step)) / top
        tried = round_clip(inverse * x, -steps, steps - 1)
        along, square = _products(weighted, weights, tried)
        better = (square > 0) & (along * along > best * square)
        np.copyto(quants, tried, where=better)
        np.copyto(scale, along / square, where=better)
        np.copyto(best, scale * along, where=better)
    return _without_zeros(top, scale, quants, steps)


def descend_symmetric(x: Floats, steps: int) -> tuple[Floats, Floats]:
    """Find scale and quants as `symmetric`, weights x², by changing one quant at a time."""
    top, weights = peak(x), x * x
    weighted = weights * x
    quants = round_clip(-np.float32(steps) / top * x, -steps, steps - 1)
    along, square = _products(weighted, weights, quants)
    # llama.cpp stops after five passes, too.
    for _ in range(5):
        if not _descend(x, weighted, weights, quants, along, square, -steps, steps - 1):
            break
    return _without_zeros(top, np.where(square > 0, along / square, np.float32(0)), quants, steps)


def positive(x: Floats, weights: Floats, top: int) -> tuple[Floats, Floats]:
    """Find scale and quants of ``scale · quant``, quants from 0 to `top`, for positive values.

    Parameters and results are those of `symmetric`.
    """
    largest = x.max(axis=0)
    inverse = np.float32(top) / largest
    best = _error(x, weights, np.rint(inverse * x), reciprocal(inverse))
    # The scales that llama.cpp's `make_qp_quants` tries.
    for step in (-4, -3, -2, -1, 1, 2, 3, 4):
        tried = (np.float32(0.1) * np.float32(step) + np.float32(top)) / largest
        error = _error(x, weights, np.fmin(np.rint(tried * x), np.float32(top)), reciprocal(tried))
        np.copyto(inverse, tried, where=error < best)
        np.copyto(best, error, where=error < best)
    quants, weighted = round_clip(inverse * x, 0, top), weights * x
    along, square = _products(weighted, weights, quants)
    for _ in range(5):
        if not _descend(x, weighted, weights, quants, along, square, 0, top):
            break
    scale = np.where(square > 0, along / square, np.float32(0))
    return _without_zeros(largest, scale, quants, 0)


def affine(
    x: Floats,
    weights: Floats,
    top: int,
    tries: int,
    first: float,
    step: float,
    *,
    absolute: bool = False,
) -> tuple[Floats, Floats, Floats]:
    """Find scale, minimum and quants of ``scale · quant - minimum``, by least squares over trials.

    Parameters
    ----------
    x, weights : (size, groups), f32
        Values of the groups, and weights of their errors.
    top : int
        Quants are 0 to `top`.
    tries : int
        Number of scales that are tried after the first.
    first, step : float
        The trials divide the range of values by ``top + first``, ``top + first + step`` …
    absolute : bool
        Whether trials are compared by absolute errors instead of squared ones.

    Returns
    -------
    scale, minimum : (groups,), f32
        The minimum is subtracted, so it is at least 0.
    quants : (size, groups), f32
        Whole numbers.
    """
    low, high = lowest(x), x.max(axis=0)
    # The stored minimum has no sign: it can only lower values.
    low[low > 0] = 0
    flat = high == low
    sum_w, sum_x = total(weights), total(weights * x)
    inverse = np.float32(top) / (high - low)
    scale = 1 / inverse
    quants = round_clip(inverse * (x - low), 0, top)
    best = _distance(x, weights, quants, scale, low, absolute)
    for index in range(tries + 1):
        divisor = np.float32(first) + np.float32(step) * np.float32(index) + np.float32(top)
        tried = round_clip(divisor / (high - low) * (x - low), 0, top)
        line = _line(x, weights, tried, sum_w, sum_x)
        error = _distance(x, weights, tried, line[0], line[1], absolute)
        better = line[2] & (error < best)
        np.copyto(quants, tried, where=better)
        for kept, new in ((best, error), (scale, line[0]), (low, line[1])):
            np.copyto(kept, new, where=better)
    # The scale of a group of equal values is 0, whatever was tried.
    quants[:, flat] = 0
    return np.where(flat, np.float32(0), scale), -low, quants


def _line(
    x: Floats, weights: Floats, quants: Floats, sum_w: Floats, sum_x: Floats
) -> tuple[Floats, Floats, NDArray[np.bool]]:
    """Fit x over quants by least squares; return slope, offset (0 at most), and success."""
    product = weights * quants
    sum_q = total(product)
    sum_xq = total(product * x)
    np.multiply(product, quants, out=product)
    sum_qq = total(product)
    # Cramer's rule for the two normal equations.
    determinant = sum_w * sum_qq - sum_q * sum_q
    scale = (sum_w * sum_xq - sum_x * sum_q) / determinant
    low = (sum_qq * sum_x - sum_q * sum_xq) / determinant
    # The stored minimum lowers values only: a line above 0 is fitted again, through the origin.
    above = low > 0
    scale = np.where(above, sum_xq / sum_qq, scale)
    return scale, np.where(above, np.float32(0), low), determinant > 0


def _distance(
    x: Floats, weights: Floats, quants: Floats, scale: Floats, low: Floats, absolute: bool
) -> Floats:
    difference = scale * quants
    difference += low
    difference -= x
    if absolute:
        np.abs(difference, out=difference)
    else:
        np.multiply(difference, difference, out=difference)
    return total(np.multiply(weights, difference, out=difference))


def _error(x: Floats, weights: Floats, quants: Floats, scale: Floats) -> Floats:
    difference = scale * quants
    np.subtract(x, difference, out=difference)
    weighted = weights * difference
    return total(np.multiply(weighted, difference, out=weighted))


def _products(weighted: Floats, weights: Floats, quants: Floats) -> tuple[Floats, Floats]:
    """Return the weighted sums of x · quant and of quant²."""
    return total(weighted * quants), total(weights * quants * quants)


def _descend(
    x: Floats,
    weighted: Floats,
    weights: Floats,
    quants: Floats,
    along: Floats,
    square: Floats,
    low: int,
    high: int,
) -> bool:
    """Improve each quant once, with all others fixed, in place; return whether one changed."""
    changed = False
    for i in range(len(x)):
        old, w = quants[i], weights[i]
        rest, rest_square = along - weighted[i] * old, square - w * old * old
        # llama.cpp's `make_q3_quants` checks the first sum alone, `make_qp_quants` both.
        allowed = rest > 0 if low < 0 else (rest > 0) & (rest_square > 0)
        new = round_clip(x[i] * rest_square / rest, low, high)
        new_along, new_square = rest + weighted[i] * new, rest_square + w * new * new
        better = new_along * new_along * square > along * along * new_square
        taken = allowed & (new != old) & better & (new_square > 0)
        np.copyto(old, new, where=taken)
        np.copyto(along, new_along, where=taken)
        np.copyto(square, new_square, where=taken)
        changed = changed or bool(taken.any())
    return changed


def _without_zeros(top: Floats, scale: Floats, quants: Floats, shift: int) -> tuple[Floats, Floats]:
    """Add `shift` to the quants; groups of negligible values get scale 0 and quants 0."""
    nothing = np.abs(top) < _NOTHING
    quants += np.float32(shift)
    quants[:, nothing] = 0
    return np.where(nothing, np.float32(0), scale), quants
