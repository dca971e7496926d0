"""NumPy twins of `wgpu_backend.ops.elementwise.fusion` and `ops.reduce.norm_chain`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.normalization import rms_norm
from wgpu_backend.cpu.twin import Array, twin, twin_of
from wgpu_backend.ops.elementwise.fusion import Step


@twin
def chain(
    steps: tuple[Step, ...],
    *operands: Array,
    shape: tuple[int, ...] | None = None,
    across: tuple[int, ...] | None = None,
) -> Array:
    """Twins of the ops, one after the other."""
    values = [np.asarray(x) for x in operands]
    for step in steps:
        given = (values[a] for a in step.arguments)
        values.append(twin_of(step.op)(*given, **dict(step.numbers)))
    if shape is None:
        return values[-1]
    return np.broadcast_to(values[-1], across or shape).reshape(shape)


@twin
def norm_chain(
    x: Array,
    steps: tuple[Step, ...],
    *operands: Array,
    norm: str,
    eps: float,
    weight: Array | None = None,
    bias: Array | None = None,
    also: int = 0,
    also_weight: Array | None = None,
    shape: tuple[int, ...] | None = None,
    across: tuple[int, ...] | None = None,
) -> Array:
    """The norm's twin, and those of the ops behind it."""
    vectors = [v for v in (weight, bias) if v is not None]
    rows = twin_of(norm)(x, *vectors, eps=eps)
    shape = x.shape if shape is None else shape
    given = list(operands)
    if also:
        given[also - 1] = rms_norm(given[also - 1], also_weight, eps=eps).reshape(across or shape)
    return chain(steps, rows.reshape(across or shape), *given, shape=shape, across=across)
