"""Kernels for GPUs: many lanes at once, subgroups that exchange values, fast workgroup memory.

Products of few columns share rows among the lanes of a work group. Products of many columns load
tiles through workgroup memory, and threads sum tiles in registers.
"""

from __future__ import annotations

from wgpu_backend.kernels.gpu import attention, conv_matrix, matrix, pairs, products, rows, sampling

# Imported for their fusion rules: rules of one op are tried in the order of their registration, and
# parts of k count only for products that no other rule rewrites. Those of matrix units, above, come
# first.
from wgpu_backend.kernels.gpu import product_rules as product_rules
from wgpu_backend.kernels.gpu import split_k as split_k
from wgpu_backend.kernels.gpu.attention_matrix import (
    attend_in_matrices,
    attend_plain_in_matrices,
    rounded_attention,
)
from wgpu_backend.kernels.gpu.attention_tiles import attend_in_tiles, attend_plain_in_tiles
from wgpu_backend.kernels.gpu.cases import CASES
from wgpu_backend.kernels.gpu.products import tiles_in_f16
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes, has_subgroups, is_hardware
from wgpu_backend.kernels.kernel import Family, Kernel, kernels_for

# Ops that no other family has kernels for. `wgpu_backend.ops` does not import them, so they are
# registered by being imported here.
OPS = (
    attention.rope_attention_splits,
    attention.attention_merge_q8,
    attention.attention_merge_q16,
    attention.attention_merge_f16,
    rounded_attention,
    conv_matrix.convolve_matrix,
    conv_matrix.f16_pixels,
    conv_matrix.magnitudes,
    matrix.f16_rows,
    pairs.f16_columns,
    rows.f16_activations,
    rows.f16_weighted,
    sampling.top_k_sample_into,
    split_k.linear_splits,
    split_k.linear_merge,
)

ATTENTION = ("paged_attention", "paged_attention_splits")
KERNELS = [
    *kernels_for(ATTENTION, has_subgroups, attention.attend),
    *kernels_for(ATTENTION, matrix.has_matrix_units, attend_in_matrices),
    *kernels_for(ATTENTION, tiles_in_f16, attend_in_tiles),
    Kernel("rounded_attention", matrix.has_matrix_units, attend_plain_in_matrices),
    Kernel("scaled_attention", tiles_in_f16, attend_plain_in_tiles),
    Kernel("rope_attention", has_subgroups, attention.attend_prepared),
    Kernel("rope_attention_splits", has_subgroups, attention.attend_prepared),
    Kernel("attention_merge_q8", has_eight_lanes, attention.merge),
    Kernel("attention_merge_q16", has_eight_lanes, attention.merge),
    Kernel("attention_merge_f16", attention.merges_f16, attention.merge),
    *kernels_for(("top_k_of_parts", "top_k_of_ids"), is_hardware, sampling.top_k),
    Kernel("top_k_sample_into", is_hardware, sampling.sample),
    *kernels_for(rows.NORMS, has_subgroups, rows.by_subgroups),
    Kernel("rms_norm_pair", has_eight_lanes, rows.pair),
    *kernels_for(("q8_activations", "q8_weighted"), is_hardware, rows.by_eight_lanes),
    *kernels_for(("q16_activations", "q16_weighted"), is_hardware, rows.to_q16_by_eight_lanes),
    *kernels_for(
        ("f16_activations", "f16_weighted"), products.multiplies_f16, rows.to_f16_by_eight_lanes
    ),
    Kernel("f16_rows", products.multiplies_f16, matrix.select_f16_rows),
    Kernel("linear", matrix.has_matrix_units, matrix.matmul_matrix),
    Kernel("f16_columns", products.multiplies_f16, pairs.select_f16_columns),
    Kernel("linear", products.tiles_in_f16, pairs.matmul_pairs),
    Kernel("linear", products.multiplies_f16, products.matvec_f16),
    Kernel("linear", products.tiles_in_f16, products.matmul_tiled_f16),
    Kernel("linear", is_hardware, products.matvec),
    Kernel("linear", is_hardware, products.matmul_tiled),
    Kernel("linear", is_hardware, products.matvec_q8),
    Kernel("linear", is_hardware, products.matvec_q16),
    Kernel("linear", is_hardware, products.matmul_tiled_q8),
    Kernel("linear_splits", matrix.has_matrix_units, matrix.matmul_matrix),
    Kernel("linear_splits", products.tiles_in_f16, pairs.matmul_pairs),
    Kernel("linear_splits", products.tiles_in_f16, products.matmul_tiled_f16),
    Kernel("linear_splits", is_hardware, products.matmul_tiled),
    Kernel("linear_splits", is_hardware, products.matmul_tiled_q8),
    Kernel("magnitudes", matrix.has_matrix_units, conv_matrix.as_it_is),
    Kernel("f16_pixels", matrix.has_matrix_units, conv_matrix.as_it_is),
    Kernel("convolve_matrix", matrix.has_matrix_units, conv_matrix.conv_matrix),
    Kernel("convolve", is_hardware, products.conv_tiled),
    Kernel("linear_by_expert", matrix.has_matrix_units, matrix.expert_matmul_matrix),
    Kernel("linear_by_expert", is_hardware, products.expert_matvec),
    Kernel("linear_by_expert", is_hardware, products.expert_matmul_tiled),
    Kernel("linear_by_expert_sum", is_hardware, products.expert_matvec_sum),
]

FAMILY = Family("gpu", KERNELS, cases=CASES, complete=matrix.with_expert_widths)
