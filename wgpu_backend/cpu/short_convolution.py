"""NumPy twins of `wgpu_backend.ops.recurrent.short_convolution`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.runs import scan_runs
from wgpu_backend.cpu.twin import Array, twin


@twin
def short_conv(
    x: Array,
    weight: Array,
    state: Array,
    runs: Array,
    bias: Array | None = None,
    *,
    silu: bool = False,
) -> Array:
    """Sum of the last values times taps, token by token."""

    def step(token: int, before: Array) -> tuple[Array, Array]:
        seen = np.concatenate([before, x[token : token + 1]])
        y = (seen * weight.T).sum(axis=0)
        y = y if bias is None else y + bias
        return y / (1 + np.exp(-y)) if silu else y, seen[1:]

    return scan_runs(state, runs, np.zeros(x.shape, np.float32), step)


@twin
def token_shift(x: Array, state: Array, runs: Array) -> Array:
    """Token before each."""

    def step(token: int, before: Array) -> tuple[Array, Array]:
        return before[0], x[token : token + 1]

    return scan_runs(state, runs, np.zeros(x.shape, np.float32), step)
