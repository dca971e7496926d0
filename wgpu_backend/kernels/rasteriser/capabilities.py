"""Predicates of devices that the kernels of this family suit."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities, GroupSizes
from wgpu_backend.ops.linear.activation_rounding import products_in
from wgpu_backend.ops.linear.attributes import Q8, Q8_PAIR

# Pairs of a tile, and how many an expert needs on average to make it pay.
EXPERT_TILES = ((4, 3), (2, 1))
# Threads of a work group, which are one subgroup where lanes shuffle.
LANES = 8
# A core runs the threads of a group one vector register after another, and starting a group costs
# as much as 64 values. So groups whose threads synchronise are small, and other groups are large,
# unless there are few threads in all or each takes many items.
GROUP_SIZES = GroupSizes(threads=64, few=LANES, many=1024, items_per_thread=32)


def is_rasteriser(capabilities: Capabilities) -> bool:
    """Return whether work groups run on a CPU."""
    return capabilities.software


def shuffles(capabilities: Capabilities) -> bool:
    """Return whether a CPU device exchanges values of eight lanes and compiles long kernels well.

    Those made with LLVM do, where the processor has vectors of eight, and they also have 64-bit
    integers; SwiftShader, without, takes gigabytes to compile a kernel of tiles in registers.
    """
    return capabilities.software and capabilities.int64 and capabilities.lanes == LANES


def reduces_by_subgroup(capabilities: Capabilities) -> bool:
    """Return whether a work group is one subgroup, which needs no barrier to reduce a row."""
    return capabilities.software and capabilities.subgroups


def complete(capabilities: Capabilities) -> Capabilities:
    """Prefer products in eight bits on rasterisers, and f32 to f16."""
    if not is_rasteriser(capabilities):
        return capabilities
    return replace(
        capabilities,
        # A conversion from f16 to f32 takes a rasteriser ten instructions.
        f16=False,
        group_sizes=GROUP_SIZES,
        # SwiftShader takes gigabytes of memory to compile tiles in registers.
        compiles_tiles=shuffles(capabilities),
        expert_tiles=EXPERT_TILES,
        # One lane reads whole rows here, so groups are best kept together.
        planar_groups=False,
        # A kernel for each product of a gate alone is faster here.
        gated_experts=False,
        rounded=products_in(Q8),
        unrounded=products_in(Q8_PAIR),
    )
