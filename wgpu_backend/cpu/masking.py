"""NumPy twin of `wgpu_backend.ops.sampling.masking`."""

from __future__ import annotations

from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.text.grammar.masks import masked


@twin
def mask_logits(x: Array, mask: Array) -> Array:
    """Put minus infinity where a mask has no bit."""
    return masked(x, mask)
