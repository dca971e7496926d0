"""Rows of weights that lie in textures."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.rasteriser.textures import in_texture, lies_in_texture
from wgpu_backend.ops.index.launches import GROUP


def rows(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Gather rows of a weight from the texture that it lies in, if it does."""
    matrix = launch.shader in ("", "ops/index/rows_quant") and "weights" in launch.operands
    if not matrix or not lies_in_texture(launch, "weights", capabilities):
        return None
    choices = {**launch.choices, **in_texture(launch, "weights")}
    if launch.shader == "ops/index/rows_quant":
        return replace(launch, choices=choices)
    size, cols = launch.count("size"), launch.count("cols")
    params = {
        "size": size // GROUP,
        "groups": cols // GROUP,
        "count": launch.count("count"),
        "rows": launch.count("rows"),
    }
    return replace(
        launch, threads=size // GROUP, params=params, shader="ops/index/rows_quant", choices=choices
    )
