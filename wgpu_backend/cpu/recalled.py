"""NumPy twin of `wgpu_backend.ops.recalled`."""

from __future__ import annotations

from wgpu_backend.cpu.indexing import rows
from wgpu_backend.cpu.sampling import recall
from wgpu_backend.cpu.twin import Array, twin


@twin
def rows_recalled(x: Array, ids: Array, kept: Array) -> Array:
    """Rows of tokens and of tokens referred to."""
    return rows(x, recall(ids, kept))
