"""NumPy twin of `wgpu_backend.ops.sampling.token_slots`."""

from __future__ import annotations

from wgpu_backend.cpu.indexing import rows
from wgpu_backend.cpu.sampling import resolve_tokens
from wgpu_backend.cpu.twin import Array, twin


@twin
def rows_of_tokens(x: Array, ids: Array, token_slots: Array) -> Array:
    """Rows of tokens and of tokens referred to."""
    return rows(x, resolve_tokens(ids, token_slots))
