"""Products with f32 activations, a lane making whole rows."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.node import Groups, Launch
from wgpu_backend.kernels.rasteriser.capabilities import LANES, shuffles
from wgpu_backend.kernels.rasteriser.folder import EPILOGUE, FOLDER, LIB
from wgpu_backend.kernels.rasteriser.interleaved_rows import interleave_depth, interleaved_groups
from wgpu_backend.kernels.rasteriser.textures import in_texture, lies_in_texture
from wgpu_backend.ops.check import FLOATS, grid_for
from wgpu_backend.ops.linear.attributes import get_attributes
from wgpu_backend.ops.linear.gates import joined_rows, require_whole
from wgpu_backend.ops.linear.normed import SQUARED
from wgpu_backend.ops.linear.tiles import FEW, even_share, select_tile

PLAIN, SHUFFLED = f"{FOLDER}/matmul", f"{FOLDER}/matmul_shuffled"
SQUARED_COLUMNS = 4  # of lanes that make as many rows as share squares: registers hold no more


def product(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply with weights, from interleaved rows in buffers or textures."""
    shuffled = shuffles(capabilities)
    if not _takes(launch, capabilities):
        return None
    require_whole(launch)
    n, joins = launch.count("n"), joined_rows(launch)
    textured = lies_in_texture(launch, "weights", capabilities)
    tile = _tile(launch, capabilities, textured=textured)
    columns = even_share(n, tile.columns)
    rows = tile.rows if textured else tile.rows // joins
    depth = interleave_depth(launch.out.shape[-1], rows) if shuffled and not textured else 1

    def groups(weight_rows: int) -> Groups:
        x, y, _ = grid_for(interleaved_groups(weight_rows // joins, rows, depth))
        return (x, y, -(-n // columns))

    choices = {**launch.choices, **_attributes(launch)}
    choices |= {"COLS": columns, "ROWS": rows, "SOURCES": tile.rows, "WG": LANES}
    if textured:
        choices |= _from_textures(launch, n, tile.rows, columns)
    elif shuffled:
        choices |= _from_buffers(launch.operands["weights"].spec.dtype, tile.rows, depth)
    return replace(launch, shader=SHUFFLED if shuffled else PLAIN, groups=groups, choices=choices)


def _takes(launch: Launch, capabilities: Capabilities) -> bool:
    """Return whether the kernels can apply the prologue and the epilogue.

    Only kernels of lanes that shuffle apply the factor of a norm. If they read floats from one
    texture, they also share the squares that the next norm needs.
    """
    found = get_attributes(launch)
    prologue = found.prologue
    if prologue.form != "values" or prologue.norm or found.epilogue.is_rounded:
        return False
    if found.epilogue.norm:
        floats = launch.operands["weights"].spec.dtype in FLOATS
        return floats and lies_in_texture(launch, "weights", capabilities)
    return prologue.eps is None or shuffles(capabilities)


def _attributes(launch: Launch) -> dict[str, str | int]:
    """Return the choices of prologue and epilogue."""
    found = get_attributes(launch)
    normed: dict[str, str | int] = {} if found.prologue.eps is None else {"NORMED": True}
    return normed | ({"lane_epilogue": f"{EPILOGUE}/f32_weighted"} if found.epilogue.norm else {})


def _tile(launch: Launch, capabilities: Capabilities, *, textured: bool) -> Tile:
    """Return the tile of a work group; it has as many rows as share squares, if it stores those."""
    kernel = "matmul_shuffled" if shuffles(capabilities) else "matmul"
    kernel = "matmul_texture" if textured else kernel
    dtype = launch.operands["weights"].spec.dtype
    tile = select_tile(capabilities, kernel, dtype, launch.count("n"))
    if not get_attributes(launch).epilogue.norm:
        return tile
    return Tile(SQUARED // LANES, min(tile.columns, SQUARED_COLUMNS), LANES)


def _from_textures(launch: Launch, n: int, rows: int, columns: int) -> dict[str, str | int]:
    """Return the choices of lanes that read a weight in the layout `layouts.float_texture`."""
    # One column uses its weights at once; several share shuffled values of x among rows.
    rows_per_load = 1 if columns == 1 else rows
    return {
        **in_texture(launch, "weights", 1 if n <= FEW else 4),
        "row_mapping": f"{LIB}/row_mapping_of_tiles",
        "ROWS_PER_LOAD": rows_per_load,
        "LOADS": rows // rows_per_load,
        # Gate and up lie far apart in the texture: read one after the other, each is one run.
        "X_READS": joined_rows(launch),
    }


def _from_buffers(dtype: DType, rows: int, depth: int) -> dict[str, str | int]:
    """Return the choices of lanes that shuffle interleaved rows of a weight in buffers."""
    floats = {"source": f"{FOLDER}/source/{dtype}", "weights": f"{LIB}/vectors_by_u64"}
    return {
        "ROWS_PER_LOAD": rows,
        "LOADS": 1,
        "INTERLEAVE": depth,
        **(floats if dtype in FLOATS else {}),
    }
