"""Kernels of ops for every device, in work groups of one subgroup."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.rasteriser.capabilities import LANES
from wgpu_backend.kernels.rasteriser.folder import LIB
from wgpu_backend.ops.conv.convolution import set_group_size
from wgpu_backend.ops.reduce.norm import reducing_rows

NORMS = ("rms_norm", "rms_norm_add", "norm_chain", "layer_norm", "softmax", "l2_norm")


def convolve(launch: Launch, _: Capabilities) -> Launch | None:
    """Convolve by vectors of channels; other layouts have a thread a value anyway."""
    return None if launch.shader == "ops/conv/convolve_plain" else set_group_size(launch, LANES)


def top_k(launch: Launch, _: Capabilities) -> Launch:
    """Choose the largest of a part."""
    return replace(launch, choices={**launch.choices, "WG": LANES})


def norm(launch: Launch, _: Capabilities) -> Launch:
    """Reduce a row by one subgroup: a barrier costs all registers."""
    return reducing_rows(launch, f"{LIB}/row_subgroup")
