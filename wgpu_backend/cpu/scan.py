"""NumPy twins of `wgpu_backend.ops.reduce.scan`."""

from __future__ import annotations

from typing import Any

import numpy as np

from wgpu_backend.cpu.reduction import kind_of
from wgpu_backend.cpu.twin import Array, twin

BLOCK = 1024
JOINS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": np.logaddexp,
}


@twin
def scan(
    x: Array, carry: Array | None = None, *, kind: str = "sum", exclusive: bool = False
) -> Array:
    """Running folds of blocks of each row."""
    join, whole = JOINS[kind], x.astype(kind_of(x.dtype))
    if kind == "prod" and x.dtype.kind == "f":  # a row as a whole, as f32 holds its products
        ones = np.ones((len(x), 1), np.float32)
        rows = np.concatenate([ones, x[:, :-1]], axis=1) if exclusive else x
        return np.multiply.accumulate(rows, axis=1, dtype=np.float32)
    y = np.empty_like(whole)
    first = np.full((len(x), 1), _first(kind, x.dtype), whole.dtype)
    for block, start in enumerate(range(0, x.shape[1], BLOCK)):
        part = whole[:, start : start + BLOCK]
        before = first if block == 0 or carry is None else carry[:, block - 1 : block]
        if exclusive:
            part = np.concatenate([before.astype(whole.dtype), part[:, :-1]], axis=1)
        found = join.accumulate(part, axis=1, dtype=whole.dtype)
        starts = exclusive or block == 0  # 0 before a value would lose the sign of -0
        y[:, start : start + BLOCK] = found if starts else join(before, found)
    return y


def _first(kind: str, dtype: np.dtype[Any]) -> float:
    """What comes before all values."""
    if kind in ("sum", "prod"):
        return float(kind == "prod")
    if dtype.kind == "f":
        return np.inf if kind == "min" else -np.inf
    if dtype.kind == "b":
        return float(kind == "min")
    info = np.iinfo(dtype.name)
    return info.max if kind == "min" else info.min
