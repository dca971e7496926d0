"""NumPy twin of `wgpu_backend.ops.attention.rope_put`."""

from __future__ import annotations

from wgpu_backend.cpu.indexing import set_rows
from wgpu_backend.cpu.position import rope
from wgpu_backend.cpu.twin import Array, twin


@twin
def rope_put(
    q: Array,
    k: Array,
    v: Array,
    table: Array,
    slots: Array,
    keys: Array,
    values: Array,
    *,
    interleaved: bool,
) -> Array:
    """Rotated queries; keys and values in their slots."""
    tokens = len(slots)
    set_rows(keys, rope(k, table, interleaved=interleaved).reshape(tokens, -1), slots)
    set_rows(values, v.reshape(tokens, -1), slots)
    return rope(q, table, interleaved=interleaved)
