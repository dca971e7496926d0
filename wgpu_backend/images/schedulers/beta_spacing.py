"""Where steps lie so that many are near both ends: quantiles of a beta distribution.

Lee et al. 2024, "Beta Sampling is All You Need", §3.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_A = 0.6  # of both ends; the distribution is symmetric
_TERMS = 60  # at 1/2 and below, each is at most half of the one before
_HALVINGS = 60


def beta_quantiles(steps: int) -> NDArray[np.float64]:
    """(steps,) quantiles of 1 down to 0."""
    wanted = 1 - np.linspace(0, 1, steps)
    lower = np.minimum(wanted, 1 - wanted)
    low, high = np.zeros(steps), np.full(steps, 0.5)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = _share(middle) < lower
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found = np.where(lower == 0, 0.0, (low + high) / 2)
    return np.where(wanted > 0.5, 1 - found, found)


def _share(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the distribution below x, for x up to 1/2: DLMF 8.17.7, the series of ₂F₁."""
    term, total = np.ones_like(x), np.zeros_like(x)
    for k in range(_TERMS):
        total += term / (_A + k)
        term = term * x * (1 - _A + k) / (1 + k)
    whole = math.gamma(_A) ** 2 / math.gamma(2 * _A)
    return x**_A * total / whole
