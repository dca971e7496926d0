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
    products,
    products_q8,
    scaled_attention,
    texel_rows,
)
from wgpu_backend.kernels.rasteriser import norms_in_products as norms_in_products
from wgpu_backend.kernels.rasteriser import tiles as tiles
from wgpu_backend.kernels.rasteriser import weighted_sums as weighted_sums
from wgpu_backend.kernels.rasteriser.capabilities import (
    complete,
    is_rasteriser,
    reduces_by_subgroup,
    shuffles,
)
from wgpu_backend.kernels.rasteriser.cases import CASES
from wgpu_backend.kernels.rasteriser.layouts import in_textures

ATTENTION = ("paged_attention", "paged_attention_splits")

KERNELS = [
    Kernel("sort_rows", is_rasteriser, lone_threads.sort_rows),
    Kernel("select_top_k", is_rasteriser, lone_threads.select_top_k),
    Kernel("route", is_rasteriser, lone_threads.route),
    Kernel("scan", is_rasteriser, lone_threads.scan),
    Kernel("radix_count", is_rasteriser, lone_threads.radix_count),
    Kernel("radix_scatter", is_rasteriser, lone_threads.radix_scatter),
    Kernel("convolve", is_rasteriser, groups_of_eight.convolve),
    *rows(("top_k_of_parts", "top_k_of_ids"), is_rasteriser, groups_of_eight.top_k),
    *rows(
        ("rms_norm", "rms_norm_add", "norm_chain", "layer_norm", "softmax", "l2_norm"),
        reduces_by_subgroup,
        groups_of_eight.norm,
    ),
    *rows(("rows", "rows_of_tokens"), shuffles, texel_rows.rows),
    Kernel("linear", is_rasteriser, products.product),
    Kernel("linear", is_rasteriser, products_q8.product),
    Kernel("linear_by_expert", is_rasteriser, experts.product),
    Kernel("linear_by_expert", is_rasteriser, experts_q8.product),
    *rows(ATTENTION, is_rasteriser, attention.attend),
    Kernel("paged_attention_q8", shuffles, attention_q8.attend),
    Kernel("rope_attention", shuffles, attention.attend_prepared),
    Kernel("scaled_attention", is_rasteriser, scaled_attention.attend),
]

FAMILY = Family("rasteriser", KERNELS, [in_textures], CASES, complete)
