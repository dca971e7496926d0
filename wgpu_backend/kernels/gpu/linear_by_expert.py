"""Products by expert on GPUs: pair by pair, or in tiles of pairs of the same expert.

For few tokens a work group takes some rows of the expert of one pair, as products of few columns
do; or of all experts of one token, whose results are summed.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.node import Launch
from wgpu_backend.kernels.gpu.linear import shares
from wgpu_backend.kernels.gpu.matvec import Extent, fit_tile, reduction, table
from wgpu_backend.kernels.gpu.register_tiles import EXPERT_TILE, f32_choices
from wgpu_backend.ops.check import FLOATS, grid_for, require
from wgpu_backend.ops.linear.attributes import VALUES, get_attributes
from wgpu_backend.ops.linear.gates import joined_rows, lies_whole, require_whole
from wgpu_backend.ops.moe.experts import by_rows, in_tiles, is_plain, pairs_per_tile

SHADER = "kernels/gpu/matmul_tiled_by_expert"
EACH_PAIR, SUMMED = "kernels/gpu/matvec_by_expert", "kernels/gpu/matvec_by_expert_sum"
THREADS = 64  # of a work group, where rows are long enough


def matvec(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply pairs one by one."""
    tiled = is_plain(launch) or in_tiles(launch)
    if tiled or get_attributes(launch).prologue != VALUES:
        return None
    require_whole(launch)
    joins, dtype = joined_rows(launch), launch.operands["weights"].spec.dtype
    rows = joins * launch.count("m") * launch.count("pairs")
    tile = _tile(Extent(rows, launch.count("groups"), 1), dtype, capabilities)
    sources = max(tile.rows, joins)
    sizes = {"ROWS": sources // joins, "SOURCES": sources, "SUMS": sources, "WG": tile.threads}
    lanes = reduction(sources, tile.threads, capabilities)
    choices = {**launch.choices, **shares(dtype), **table(dtype), **sizes, **lanes}
    return by_rows(replace(launch, shader=EACH_PAIR, choices=choices), sources // joins)


def matvec_sum(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply with all experts of a token, and sum."""
    if not lies_whole(launch.operands["weights"]):
        return None
    dtype, tokens = launch.operands["weights"].spec.dtype, launch.count("tokens")
    groups = launch.count("groups") * launch.count("used")
    tile = _tile(Extent(launch.count("m") * tokens, groups, 1), dtype, capabilities)
    row_groups = -(-launch.count("m") // tile.rows)
    sizes = {"ROWS": tile.rows, "SUMS": tile.rows, "WG": tile.threads}
    lanes = reduction(tile.rows, tile.threads, capabilities)
    return replace(
        launch,
        shader=SUMMED,
        groups=grid_for(row_groups * tokens),
        params={**launch.params, "row_groups": row_groups},
        choices={**launch.choices, **shares(dtype), **table(dtype), **sizes, **lanes},
    )


def _tile(extent: Extent, dtype: DType, capabilities: Capabilities) -> Tile:
    rows = 8 if dtype in FLOATS else 4
    return fit_tile(extent, Tile(rows, 1, THREADS), 0, capabilities)


def matmul_tiled(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply the pairs of a tile together."""
    if is_plain(launch) or not in_tiles(launch) or get_attributes(launch).prologue != VALUES:
        return None
    columns = pairs_per_tile(launch)
    require(
        columns == EXPERT_TILE.columns,
        ShapeError,
        f"linear_by_expert: tiles hold {columns} pairs, this device needs {EXPERT_TILE.columns}",
    )
    choices = {**launch.choices, **f32_choices(EXPERT_TILE)}
    return by_rows(replace(launch, shader=SHADER, choices=choices), EXPERT_TILE.rows)
