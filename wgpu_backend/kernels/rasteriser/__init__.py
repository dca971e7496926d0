"""Kernels for rasterisers, which run a work group on one core of a CPU.

A barrier costs such a device all its registers, workgroup memory is slower than a second load, and
eight lanes of a core are one subgroup. So a thread takes a row, a chunk or a tile by itself, in
work groups of eight. Where lanes shuffle values (`capabilities.shuffles`), weights lie in
textures in the order in which they are read, and products round their results.
"""

from __future__ import annotations

from wgpu_backend.kernels.kernel import Family, Kernel, rows
from wgpu_backend.kernels.rasteriser import (
    attention,
    attention_q8,
    experts,
    experts_q8,
    groups_of_eight,
    lone_threads,
    norms_in_products,
    products,
    products_q8,
    q8_results,
    scaled_attention,
    texel_rows,
    weighted_sums,
)
from wgpu_backend.kernels.rasteriser.capabilities import (
    is_rasteriser,
    reduces_by_subgroup,
    shuffles,
)
from wgpu_backend.kernels.rasteriser.layouts import in_textures

PRODUCTS = norms_in_products.PRODUCTS
PRODUCTS_Q8 = ("mulmat_q8", "mulmat_q8_add", "mulmat_q8_gated", "mulmat_q8_pair")
ATTENTION = ("paged_attention", "paged_attention_splits")

KERNELS = [
    Kernel("sort_rows", is_rasteriser, lone_threads.sort_rows),
    Kernel("choose", is_rasteriser, lone_threads.choose),
    Kernel("route", is_rasteriser, lone_threads.route),
    Kernel("scan", is_rasteriser, lone_threads.scan),
    Kernel("radix_count", is_rasteriser, lone_threads.radix_count),
    Kernel("radix_scatter", is_rasteriser, lone_threads.radix_scatter),
    Kernel("convolve", is_rasteriser, groups_of_eight.convolve),
    *rows(("top_k_of_parts", "top_k_of_ids"), is_rasteriser, groups_of_eight.top_k),
    *rows(
        ("rms_norm", "layer_norm", "softmax", "l2_norm"), reduces_by_subgroup, groups_of_eight.norm
    ),
    *rows(("rows", "rows_of_tokens"), shuffles, texel_rows.rows),
    *rows(PRODUCTS, is_rasteriser, products.product),
    Kernel("mulmat_add_weighted", shuffles, weighted_sums.product),
    *rows(PRODUCTS_Q8, is_rasteriser, products_q8.product),
    *rows(("mulmat_q8_gated_q8", "mulmat_q8_add_q8"), shuffles, q8_results.product),
    *rows(("mulmat_id", "mulmat_id_add"), is_rasteriser, experts.product),
    Kernel("mulmat_id_tiles", is_rasteriser, experts.product_of_tiles),
    *rows(("mulmat_id_q8", "mulmat_id_q8_tiles"), is_rasteriser, experts_q8.product),
    *rows(ATTENTION, is_rasteriser, attention.paged),
    Kernel("paged_attention_q8", shuffles, attention_q8.paged),
    Kernel("rope_attention", shuffles, attention.prepared),
    Kernel("scaled_attention", is_rasteriser, scaled_attention.attend),
]

FAMILY = Family("rasteriser", KERNELS, [in_textures])
