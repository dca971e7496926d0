"""What parameters are before weights are loaded: drawn lazily, so replacing them costs nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wgpu_backend.array import devices
from wgpu_backend.array.core import wrap
from wgpu_backend.ops.shape import creation

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

_keys = itertools.count(1)


def draw(*shape: int, scale: float) -> Array:
    """Normally distributed numbers of this standard deviation; no two calls draw the same."""
    key = next(_keys)
    return wrap(creation.random_normal.add_to(devices.session(), shape=shape, scale=scale, key=key))


def draw_weights(shape: Sequence[int]) -> Array:
    """Weights (outputs, ..., inputs) that about keep the variance of what they multiply."""
    return draw(*shape, scale=1 / math.sqrt(max(math.prod(shape[1:]), 1)))
