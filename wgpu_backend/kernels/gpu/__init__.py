"""Kernels for GPUs: many lanes at once, subgroups that exchange values, fast workgroup memory.

Products of few columns share rows among the lanes of a work group. Products of many columns load
tiles through workgroup memory, and threads sum tiles in registers.
"""

from __future__ import annotations

from wgpu_backend.kernels.gpu import (
    attention_token,
    convolution,
    f16_rounding,
    linear,
    linear_by_expert,
    merge_q8,
    norms,
    rope_splits,
    rounding,
    sampling,
)
from wgpu_backend.kernels.gpu import f16_columns as f16_columns  # rules
from wgpu_backend.kernels.gpu import f16_pairs as f16_pairs  # a rule
from wgpu_backend.kernels.gpu import norms_in_rows as norms_in_rows  # a rule
from wgpu_backend.kernels.gpu import split_k as split_k  # whose rule is asked after these
from wgpu_backend.kernels.gpu.cases import CASES
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes, has_subgroups, is_hardware
from wgpu_backend.kernels.kernel import Family, Kernel, rows

# Which no other family has.
OPS = (
    rope_splits.rope_attention_splits,
    merge_q8.attention_merge_q8,
    merge_q8.attention_merge_q16,
    merge_q8.attention_merge_f16,
    f16_rounding.f16_activations,
    f16_rounding.f16_weighted,
    sampling.top_k_sample_into,
    split_k.linear_splits,
    split_k.linear_merge,
)

KERNELS = [
    Kernel("paged_attention", has_subgroups, attention_token.attend),
    Kernel("paged_attention_splits", has_subgroups, attention_token.attend),
    Kernel("rope_attention", has_subgroups, attention_token.attend_prepared),
    Kernel("rope_attention_splits", has_subgroups, attention_token.attend_prepared),
    Kernel("attention_merge_q8", has_eight_lanes, merge_q8.merge),
    Kernel("attention_merge_q16", has_eight_lanes, merge_q8.merge),
    Kernel("attention_merge_f16", merge_q8.merges_f16, merge_q8.merge),
    *rows(("top_k_of_parts", "top_k_of_ids"), is_hardware, sampling.top_k),
    Kernel("top_k_sample_into", is_hardware, sampling.sample),
    *rows(
        ("rms_norm", "rms_norm_add", "norm_chain", "layer_norm", "softmax", "l2_norm"),
        has_subgroups,
        norms.by_subgroups,
    ),
    Kernel("rms_norm_pair", has_eight_lanes, norms.pair),
    *rows(("q8_activations", "q8_weighted"), is_hardware, rounding.by_eight_lanes),
    *rows(("q16_activations", "q16_weighted"), is_hardware, rounding.to_q16_by_eight_lanes),
    *rows(("f16_activations", "f16_weighted"), linear.multiplies_f16, f16_rounding.by_eight_lanes),
    Kernel("linear", linear.multiplies_f16, linear.matvec_f16),
    Kernel("linear", linear.tiles_in_f16, linear.matmul_tiled_f16),
    Kernel("linear", is_hardware, linear.matvec),
    Kernel("linear", is_hardware, linear.matmul_tiled),
    Kernel("linear", is_hardware, linear.matvec_q8),
    Kernel("linear", is_hardware, linear.matvec_q16),
    Kernel("linear", is_hardware, linear.matmul_tiled_q8),
    Kernel("linear_splits", linear.tiles_in_f16, linear.matmul_tiled_f16),
    Kernel("linear_splits", is_hardware, linear.matmul_tiled),
    Kernel("linear_splits", is_hardware, linear.matmul_tiled_q8),
    Kernel("convolve", is_hardware, convolution.conv_tiled),
    Kernel("linear_by_expert", is_hardware, linear_by_expert.matvec),
    Kernel("linear_by_expert", is_hardware, linear_by_expert.matmul_tiled),
    Kernel("linear_by_expert_sum", is_hardware, linear_by_expert.matvec_sum),
]

FAMILY = Family("gpu", KERNELS, cases=CASES)
