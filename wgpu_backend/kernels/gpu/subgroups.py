"""What kernels of GPUs ask of a device's subgroups."""

from __future__ import annotations

from wgpu_backend.graph.capabilities import Capabilities

EIGHT_LANES = "a GPU with subgroups of eight lanes or more"


def is_hardware(capabilities: Capabilities) -> bool:
    """Whether work groups run on a GPU."""
    return not capabilities.software


def has_subgroups(capabilities: Capabilities) -> bool:
    """Whether lanes of a subgroup exchange values."""
    return capabilities.subgroups


def has_eight_lanes(capabilities: Capabilities) -> bool:
    """Whether a GPU's subgroups are eight lanes or more, as far as is known."""
    wide = capabilities.subgroups and capabilities.lanes in (0, 8)
    return wide and not capabilities.software


def eight_lanes(capabilities: Capabilities) -> dict[str, str]:
    """Choice of how eight lanes exchange values where a kernel imports that as ``eight``."""
    if has_eight_lanes(capabilities):
        return {"eight": "kernels/gpu/lib/eight_lanes_subgroup"}
    return {}
