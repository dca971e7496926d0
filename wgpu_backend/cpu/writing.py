"""NumPy twins of `wgpu_backend.ops.index.writing`."""

from __future__ import annotations

from wgpu_backend.cpu.twin import Array, twin


@twin
def fresh(x: Array) -> Array:
    """Copy."""
    return x.copy()


@twin
def put_window(dst: Array, x: Array) -> Array:
    """Write into a strided window."""
    dst[...] = x
    return dst
