"""Steps of recurrent ops in NumPy, run by run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wgpu_backend.ops.reference import Array


def scan_runs_reference(
    state: Array, runs: Array, y: Array, step: Callable[[int, Array], tuple[Array, Array]]
) -> Array:
    """Call `step` with each token and the state before it; store its result y and new state."""
    # Slots are read before any is written, as the runs of a batch go side by side.
    known = [
        state[s].copy() if 0 <= s < len(state) else np.zeros_like(state[0]) for s in runs[:, 2]
    ]
    for (first, count, _, target), now in zip(runs, known, strict=True):
        for token in range(first, first + count):
            y[token], now = step(token, now)
        if count and 0 <= target < len(state):
            state[target] = now
    return y
