"""Rounding to eight or sixteen bits with eight lanes a group of 32 values."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.gpu.subgroups import eight_lanes
from wgpu_backend.ops.linear.q8_rounding import GROUP

LANES = 8  # of a group
IN_Q16 = {"rounding": "kernels/gpu/lib/round_q16"}


def by_eight_lanes(launch: Launch, capabilities: Capabilities) -> Launch:
    """Round with neighbouring lanes on neighbouring values; a GPU has more lanes than groups."""
    params = {"groups": launch.operands["x"].spec.shape[-1] // GROUP, **launch.params}
    choices = {**launch.choices, "WEIGHTED": "weight" in launch.operands}
    if "weight" not in launch.operands:
        params["weight_offset"] = 0
        choices["weight"] = "=x"  # which is compiled, and never read
    choices |= eight_lanes(capabilities)
    return replace(
        launch,
        shader="kernels/gpu/rounded_groups",
        threads=LANES * launch.count("size"),
        params=params,
        choices=choices,
    )


def to_q16_by_eight_lanes(launch: Launch, capabilities: Capabilities) -> Launch:
    """Round to sixteen bits with neighbouring lanes on neighbouring values."""
    found = by_eight_lanes(launch, capabilities)
    return replace(found, choices={**found.choices, **IN_Q16})
