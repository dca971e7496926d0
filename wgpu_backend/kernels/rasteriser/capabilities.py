"""What devices the kernels of this family suit."""

from __future__ import annotations

from wgpu_backend.device_info import Capabilities

LANES = 8  # threads of a work group, which are one subgroup where lanes shuffle


def is_rasteriser(capabilities: Capabilities) -> bool:
    """Whether work groups run on a CPU."""
    return capabilities.software


def shuffles(capabilities: Capabilities) -> bool:
    """Whether, besides, eight lanes exchange values, and long kernels compile well.

    Those made with LLVM do, where the processor has vectors of eight, and they also have 64-bit
    integers; SwiftShader, without, takes gigabytes to compile a kernel of tiles in registers.
    """
    return capabilities.software and capabilities.int64 and capabilities.lanes == LANES


def reduces_by_subgroup(capabilities: Capabilities) -> bool:
    """Whether a work group is one subgroup, which needs no barrier to reduce a row."""
    return capabilities.software and capabilities.subgroups
