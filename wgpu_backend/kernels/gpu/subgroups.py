"""Predicates of a device's subgroups."""

from __future__ import annotations

from wgpu_backend.graph.capabilities import Capabilities

EIGHT_LANES = "a GPU with subgroups of eight lanes or more"


def is_hardware(capabilities: Capabilities) -> bool:
    """Return whether work groups run on a GPU."""
    return not capabilities.software


def has_subgroups(capabilities: Capabilities) -> bool:
    """Return whether lanes of a subgroup exchange values."""
    return capabilities.subgroups


def has_eight_lanes(capabilities: Capabilities) -> bool:
    """Return whether a GPU's subgroups have eight lanes or more, as far as is known."""
    # `lanes` is 0 on hardware: it is measured on rasterisers only.
    wide = capabilities.subgroups and capabilities.lanes in (0, 8)
    return wide and not capabilities.software


def eight_lanes(capabilities: Capabilities) -> dict[str, str]:
    """Return the module by which eight lanes exchange values, for shaders that import ``eight``."""
    if has_eight_lanes(capabilities):
        return {"eight": "kernels/gpu/lib/eight_lanes_subgroup"}
    return {}
