"""Products by expert with f32 activations, one lane making whole rows."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.rasteriser.capabilities import LANES, shuffles
from wgpu_backend.kernels.rasteriser.folder import FOLDER, LIB
from wgpu_backend.ops.linear.attributes import VALUES, get_attributes
from wgpu_backend.ops.moe.experts import by_rows, in_tiles, is_gated, is_plain, pairs_per_tile

SHADER = f"{FOLDER}/matmul_by_expert"
ROWS, TILE_ROWS = 2, 4  # of an expert, that a lane takes of one pair or of a tile


def product(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply each pair of a token and a choice by itself, or those of a tile together."""
    if is_plain(launch) or is_gated(launch) or get_attributes(launch).prologue != VALUES:
        return None
    rows = TILE_ROWS if in_tiles(launch) else ROWS
    return _by_lanes(launch, capabilities, rows, pairs_per_tile(launch))


def _by_lanes(launch: Launch, capabilities: Capabilities, rows: int, columns: int) -> Launch:
    choices = {**launch.choices, "ROWS": rows, "COLS": columns, "WG": LANES}
    if shuffles(capabilities):
        choices["vec4s"] = f"{LIB}/vec4_shuffled"
        if launch.operands["x"].spec.dtype == F32:
            choices["x"] = f"{LIB}/f32_by_u64"
    return by_rows(replace(launch, shader=SHADER, choices=choices), LANES * rows)
