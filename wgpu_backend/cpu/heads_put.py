"""NumPy twin of `wgpu_backend.ops.attention.heads_put`."""

from __future__ import annotations

from wgpu_backend.cpu.indexing import set_rows
from wgpu_backend.cpu.normalization import rms_norm
from wgpu_backend.cpu.position import rope
from wgpu_backend.cpu.twin import Array, twin


@twin
def heads_put(
    q: Array,
    k: Array,
    v: Array,
    slots: Array,
    keys: Array,
    values: Array,
    table: Array | None = None,
    query_norm: Array | None = None,
    key_norm: Array | None = None,
    *,
    eps: float,
    order: str = "before",
    value_norm: bool = False,
    interleaved: bool = False,
) -> Array:
    """Queries behind norm and rotation; keys and values in their slots."""

    def turned(x: Array) -> Array:
        return x if table is None else rope(x, table, interleaved=interleaved)

    def made(x: Array, weight: Array | None) -> Array:
        if order == "after":
            return rms_norm(turned(x), weight, eps=eps)
        return turned(rms_norm(x, weight, eps=eps))

    set_rows(keys, made(k, key_norm).reshape(len(slots), -1), slots)
    v = rms_norm(v, eps=eps) if value_norm else v
    set_rows(values, v.reshape(len(slots), -1), slots)
    return made(q, query_norm)
