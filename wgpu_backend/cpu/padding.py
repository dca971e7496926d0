"""NumPy twins of `wgpu_backend.ops.conv.padding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wgpu_backend.cpu.twin import Array, twin


@twin
def padded(
    x: Array, *, before: Sequence[int], shape: Sequence[int], mode: str, value: float = 0.0
) -> Array:
    """NumPy's own padding."""
    pairs = [(b, want - b - n) for b, want, n in zip(before, shape, x.shape, strict=True)]
    if mode == "constant":
        return np.pad(x, pairs, constant_values=np.array(value).astype(x.dtype))
    how: Any = mode
    return np.pad(x, pairs, mode=how) if x.size else np.zeros(shape, x.dtype)
