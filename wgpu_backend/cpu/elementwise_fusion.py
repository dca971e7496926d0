"""NumPy twin of `wgpu_backend.ops.elementwise.fusion`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin, twin_of
from wgpu_backend.ops.elementwise.fusion import Step


@twin
def chain(steps: tuple[Step, ...], *operands: Array) -> Array:
    """Twins of the ops, one after the other."""
    values = [np.asarray(x) for x in operands]
    for step in steps:
        values.append(twin_of(step.op)(*(values[a] for a in step.arguments)))
    return values[-1]
