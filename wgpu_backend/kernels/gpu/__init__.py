"""Kernels for GPUs: many lanes at once, subgroups that exchange values, fast workgroup memory."""

from __future__ import annotations

from wgpu_backend.device_info import Capabilities
from wgpu_backend.kernels.gpu import attention_token, norms, rounding
from wgpu_backend.kernels.kernel import Family, Kernel, rows


def is_hardware(capabilities: Capabilities) -> bool:
    """Whether work groups run on a GPU."""
    return not capabilities.software


def has_subgroups(capabilities: Capabilities) -> bool:
    """Whether lanes of a subgroup exchange values."""
    return capabilities.subgroups


KERNELS = [
    Kernel("paged_attention", has_subgroups, attention_token.attend),
    Kernel("paged_attention_splits", has_subgroups, attention_token.attend),
    Kernel("rope_attention", has_subgroups, attention_token.attend_prepared),
    *rows(("rms_norm", "layer_norm", "softmax", "l2_norm"), has_subgroups, norms.by_subgroups),
    *rows(("q8_activations", "q8_weighted"), is_hardware, rounding.by_eight_lanes),
]

FAMILY = Family("gpu", KERNELS)
