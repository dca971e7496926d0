"""NumPy twins of `wgpu_backend.ops.reduce.folding` and its `reduction`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wgpu_backend.cpu.twin import Array, twin

# Sums of floats are in f64 here, so that they tell how exact a device's are.
REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.add.reduce,
    "squares": np.add.reduce,
    "prod": np.multiply.reduce,
    "logaddexp": np.logaddexp.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
}

_KINDS = {"f": np.dtype("f8"), "i": np.dtype("i4"), "u": np.dtype("u4"), "b": np.dtype("u4")}


def kind_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Type that values of a type are folded in."""
    return dtype if dtype.kind in "iu" and dtype.itemsize == 8 else _KINDS[dtype.kind]


@twin
def reduce(
    x: Array,
    centre: Array | None = None,
    *,
    kind: str,
    axes: Sequence[int],
    part: int,
    divisor: float = 1.0,
) -> Array:
    """Fold parts of each output."""
    kept = [a for a in range(x.ndim) if a not in axes]
    lines = x.transpose(*kept, *axes).reshape(
        int(np.prod([x.shape[a] for a in kept], dtype=int)),
        int(np.prod([x.shape[a] for a in axes], dtype=int)),
    )
    lines = lines.astype(kind_of(x.dtype))
    if kind == "squares" and centre is not None:
        lines = (lines - centre.reshape(-1, 1)) ** 2
    starts = range(0, max(lines.shape[1], 1), part)
    if not len(lines):
        return np.empty((0, len(starts)), lines.dtype)  # a maximum has no value for no values
    if x.dtype == bool and not lines.shape[1]:  # of truth it has: `any` and `all` of nothing
        return np.full((len(lines), 1), kind == "min", np.uint32)
    with np.errstate(over="ignore"):
        reduced = [REDUCTIONS[kind](lines[:, s : s + part], axis=1) for s in starts]
    results = np.stack(reduced, axis=1).astype(lines.dtype)
    return results / divisor if kind in ("sum", "squares") and x.dtype.kind == "f" else results


@twin
def l2_norm(x: Array, *, eps: float) -> Array:
    """Divide rows by their length."""
    length = np.sqrt(np.sum(x.astype(np.float64) ** 2, axis=-1, keepdims=True))
    return x / np.maximum(length, eps)
