"""Convolutions on GPUs: tiled products, whose columns are the patches of pixels."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.gpu.register_tiles import GROUP, f32_tile, grid
from wgpu_backend.ops.check import MAX_GROUPS

SHADER = "kernels/gpu/conv_tiled"
FEWEST = 16  # outputs of which a tile of rows is made; fewer leave most of it empty


def conv_tiled(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Convolve in tiles, if channels are whole groups and weight rows are contiguous."""
    weight = launch.operands["weights"]
    rows, *_, channels = weight.spec.shape
    in_groups = launch.count("group_outputs") < rows or channels % GROUP
    in_a_line = weight.spec.is_dense and weight.spec.offset % GROUP == 0
    if launch.shader or launch.choices["SPREAD"] or launch.choices["FLIPPED"]:
        return None  # by values, or transposed
    if in_groups or not in_a_line or rows < FEWEST or not launch.out.size:
        return None
    n = launch.count("pixels")
    tile, choices = f32_tile(rows, n, capabilities)
    if -(-n // tile.columns) > MAX_GROUPS:
        return None

    params = {
        "m": rows,
        "n": n,
        "groups": weight.spec.size // rows // GROUP,
        "tap_groups": channels // GROUP,
        "weights_rows": rows,
    }
    return replace(
        launch,
        shader=SHADER,
        groups=grid(rows, n, tile),
        params={**launch.params, **params},
        choices=choices,
    )
