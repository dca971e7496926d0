"""Norms and softmax of rows, which lanes of a work group reduce together."""

from __future__ import annotations

from wgpu_backend.device_info import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.ops.normalization import by_team


def by_subgroups(launch: Launch, _: Capabilities) -> Launch:
    """Reduce rows by subgroups: two barriers instead of one for each step of a tree."""
    return by_team(launch, "team/subgroups")
