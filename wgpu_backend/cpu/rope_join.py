"""NumPy twins of `wgpu_backend.ops.attention.rope_join` and `latent_put`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.indexing import set_rows
from wgpu_backend.cpu.normalization import rms_norm
from wgpu_backend.cpu.position import rope
from wgpu_backend.cpu.twin import Array, twin


@twin
def rope_join(
    first: Array,
    second: Array,
    table: Array | None = None,
    weight: Array | None = None,
    dst: Array | None = None,
    slots: Array | None = None,
    *,
    interleaved: bool = False,
    eps: float | None = None,
) -> Array:
    """Norm of the first part beside the rotated second, or the cache they are put into."""
    first = first if eps is None else rms_norm(first, weight, eps=eps)
    second = second if table is None else rope(second, table, interleaved=interleaved)
    y = np.concatenate([first, second], axis=2)
    if dst is None or slots is None:
        return y
    return set_rows(dst, y.reshape(len(y), -1), slots)


@twin
def latent_put(
    first: Array,
    second: Array,
    latents: Array,
    shared: Array,
    keys: Array,
    slots: Array,
    table: Array | None = None,
    weight: Array | None = None,
    *,
    interleaved: bool = False,
    eps: float | None = None,
) -> Array:
    """Queries; the keys go into their cache."""
    how = {"interleaved": interleaved}
    rope_join(latents, shared, table, weight, keys, slots, **how, eps=eps)
    return rope_join(first, second, table, **how)
