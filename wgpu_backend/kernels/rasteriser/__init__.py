"""Kernels for rasterisers, which run a work group on one core of a CPU.

A barrier costs such a device all its registers, workgroup memory is slower than a second load, and
eight lanes of a core are one subgroup. So a thread takes a row, a chunk or a tile by itself, in
work groups of eight. Where lanes shuffle values (`capabilities.shuffles`), weights lie in
textures in the order in which they are read, and products round their results.
"""

from __future__ import annotations

from wgpu_backend.kernels.kernel import Family, Kernel, kernels_for
from wgpu_backend.kernels.rasteriser import attention, products, rows

# Imported for its fusion rules.
from wgpu_backend.kernels.rasteriser import norms_in_products as norms_in_products
from wgpu_backend.kernels.rasteriser.capabilities import (
    complete,
    is_rasteriser,
    reduces_by_subgroup,
    shuffles,
)
from wgpu_backend.kernels.rasteriser.cases import CASES
from wgpu_backend.kernels.rasteriser.textures import in_textures

ATTENTION = ("paged_attention", "paged_attention_splits")

KERNELS = [
    Kernel("sort_rows", is_rasteriser, rows.sort_rows),
    Kernel("select_top_k", is_rasteriser, rows.select_top_k),
    Kernel("route", is_rasteriser, rows.route),
    Kernel("scan", is_rasteriser, rows.scan),
    Kernel("radix_count", is_rasteriser, rows.radix_count),
    Kernel("radix_scatter", is_rasteriser, rows.radix_scatter),
    Kernel("convolve", is_rasteriser, rows.convolve),
    *kernels_for(("top_k_of_parts", "top_k_of_ids"), is_rasteriser, rows.top_k),
    *kernels_for(rows.NORMS, reduces_by_subgroup, rows.norm),
    *kernels_for(("rows", "rows_of_tokens"), shuffles, rows.from_texture),
    Kernel("linear", is_rasteriser, products.multiply),
    Kernel("linear", is_rasteriser, products.multiply_q8),
    Kernel("linear_by_expert", is_rasteriser, products.multiply_by_expert),
    Kernel("linear_by_expert", is_rasteriser, products.multiply_by_expert_q8),
    *kernels_for(ATTENTION, is_rasteriser, attention.attend),
    Kernel("paged_attention_q8", shuffles, attention.attend_rounded),
    Kernel("rope_attention", shuffles, attention.attend_prepared),
    Kernel("scaled_attention", is_rasteriser, attention.attend_plain_keys),
]

FAMILY = Family("rasteriser", KERNELS, [in_textures], CASES, complete)
