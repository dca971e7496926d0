"""Products by the chosen expert on hardware: tiles of what chose the same expert."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.gpu.register_tiles import EXPERT_TILE, f32_choices
from wgpu_backend.ops.check import require
from wgpu_backend.ops.linear.attributes import VALUES, attributes_of
from wgpu_backend.ops.moe.experts import by_rows, in_tiles, is_plain, pairs_of_a_tile

SHADER = "kernels/gpu/matmul_tiled_by_expert"


def matmul_tiled(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply the pairs of a tile together."""
    if is_plain(launch) or not in_tiles(launch) or attributes_of(launch).prologue != VALUES:
        return None
    columns = pairs_of_a_tile(launch)
    require(
        columns == EXPERT_TILE.columns,
        ShapeError,
        f"linear_by_expert: tiles hold {columns} pairs, this device needs {EXPERT_TILE.columns}",
    )
    choices = {**launch.choices, **f32_choices(EXPERT_TILE)}
    return by_rows(replace(launch, shader=SHADER, choices=choices), EXPERT_TILE.rows)
