"""Products on rasterisers: with weights and by expert, in f32 and in eight bits.

A lane makes whole rows, from textures or from rows of a buffer that are interleaved over work
groups. A lane's rows of consecutive work groups are then adjacent in memory (see
``lib/interleaved_rows.wgsl`` of the family). A CPU's prefetcher engages on runs that are read in
order. Short rows end before it does, unless the next one follows in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import gcd

from wgpu_backend.dtypes import F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, DType
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Groups, Launch, Node
from wgpu_backend.kernels.rasteriser.capabilities import LANES, shuffles
from wgpu_backend.kernels.rasteriser.folder import EPILOGUE, FOLDER, LIB
from wgpu_backend.kernels.rasteriser.textures import groups_in_texture, in_texture, lies_in_texture
from wgpu_backend.ops.check import FLOATS, grid_for
from wgpu_backend.ops.linear.attributes import Q8, VALUES, get_attributes
from wgpu_backend.ops.linear.gates import joined_rows, require_whole
from wgpu_backend.ops.linear.normed import SQUARED
from wgpu_backend.ops.linear.q8 import FORMATS, GROUP, ROW, q8_activations
from wgpu_backend.ops.linear.tiles import CLASSES, FEW, TILES, Class, Tiles, even_share, select_tile
from wgpu_backend.ops.moe.expert_tiles import rebuild_product
from wgpu_backend.ops.moe.experts import (
    by_rows,
    in_tiles,
    is_gated,
    is_plain,
    linear_by_expert,
    pairs_per_tile,
)

PLAIN, SHUFFLED = f"{FOLDER}/matmul", f"{FOLDER}/matmul_shuffled"
# Columns per lane if a work group makes all rows that share a sum of squares; registers limit them.
SQUARED_COLUMNS = 4


def multiply(launch: Launch, capabilities: Capabilities) -> Launch | None:
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
    """Return the shader choices of prologue and epilogue."""
    found = get_attributes(launch)
    normed: dict[str, str | int] = {} if found.prologue.eps is None else {"NORMED": True}
    return normed | ({"lane_epilogue": f"{EPILOGUE}/f32_weighted"} if found.epilogue.norm else {})


def _tile(launch: Launch, capabilities: Capabilities, *, textured: bool) -> Tile:
    """Return the tile of a work group; if it stores squares, it covers all rows of a sum."""
    kernel = "matmul_shuffled" if shuffles(capabilities) else "matmul"
    kernel = "matmul_texture" if textured else kernel
    dtype = launch.operands["weights"].spec.dtype
    tile = select_tile(capabilities, kernel, dtype, launch.count("n"))
    if not get_attributes(launch).epilogue.norm:
        return tile
    return Tile(SQUARED // LANES, min(tile.columns, SQUARED_COLUMNS), LANES)


def _from_textures(launch: Launch, n: int, rows: int, columns: int) -> dict[str, str | int]:
    """Return the shader choices for a weight in the layout `layouts.float_texture`."""
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
    """Return the shader choices of lanes that shuffle interleaved rows of a weight in buffers."""
    floats = {"source": f"{FOLDER}/source/{dtype}", "weights": f"{LIB}/vectors_by_u64"}
    return {
        "ROWS_PER_LOAD": rows,
        "LOADS": 1,
        "INTERLEAVE": depth,
        **(floats if dtype in FLOATS else {}),
    }


# Below so many bytes of a row the hardware prefetcher does not engage.
SHORT_NBYTES = 768
# Rows that are adjacent at most: 14 KiB of 896 values in f16.
DEEPEST = 8
# Work groups from which on the surplus of a last, unfilled run is small.
MANY = 64


def interleave_depth(rows: int, per_lane: int) -> int:
    """Return how many consecutive work groups have a lane's rows adjacent in memory.

    Parameters
    ----------
    rows : int
        Rows of y.
    per_lane : int
        Rows of a lane in one work group.

    Returns
    -------
    int
        So that no work group is without rows, or few of many are.
    """
    groups = -(-rows // (LANES * per_lane))
    return DEEPEST if groups >= MANY else gcd(groups, DEEPEST)


def interleaved_groups(rows: int, per_lane: int, depth: int) -> int:
    """Return the work groups for `rows`, a multiple of `depth`."""
    return -(-rows // (LANES * per_lane * depth)) * depth


def has_short_rows(launch: Launch) -> bool:
    """Return whether rows are short, so that a work group should load its weights in advance."""
    spec = launch.operands["weights"].spec
    return spec.dtype.nbytes(spec.shape[-1]) < SHORT_NBYTES


def _lane_tiles(
    *defaults: Tile, rows: tuple[int, ...], columns: tuple[int, ...]
) -> dict[Class, tuple[Tile, ...]]:
    """Return defaults for one, few and many columns, each followed by the other candidates."""
    others = [Tile(r, c, LANES) for r, c in product(rows, columns)]
    alone = [Tile(r, 1, LANES) for r in rows]
    return {
        name: tuple(dict.fromkeys([default, *(alone if name == "one" else others)]))
        for name, default in zip(CLASSES, defaults, strict=True)
    }


# Rows of lanes are even, since two rows of a weight may be joined.
_OF_LANES: Mapping[str, Mapping[Class, tuple[Tile, ...]]] = {
    "matmul": _lane_tiles(
        Tile(2, 1, LANES), Tile(4, 4, LANES), Tile(4, 4, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "matmul_shuffled": _lane_tiles(
        Tile(2, 1, LANES), Tile(2, 8, LANES), Tile(2, 8, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "matmul_texture": _lane_tiles(
        Tile(8, 1, LANES), Tile(8, 4, LANES), Tile(4, 8, LANES), rows=(2, 4, 8), columns=(4, 8)
    ),
    "matmul_q8": _lane_tiles(
        Tile(4, 1, LANES), Tile(4, 4, LANES), Tile(4, 4, LANES), rows=(2, 4), columns=(4, 8)
    ),
    "matmul_q8_texture": {
        "one": (Tile(4, 1, LANES),),
        "few": (Tile(4, 8, LANES), Tile(4, 4, LANES)),
        "many": (Tile(4, 8, LANES), Tile(4, 4, LANES)),
    },
}
TILES.update({kernel: Tiles(by_class) for kernel, by_class in _OF_LANES.items()})


IN_BYTES = f"{FOLDER}/matmul_q8"
# Formats for which a loop body with two groups still fits the instruction cache, and the most
# columns that leave enough registers for it.
SHORT = (Q4_0, Q4_1, Q5_0, Q5_1, Q4_K)
SHORT_COLUMNS = 2
# The largest kernel binds four planes of weights, and five other operands.
BINDINGS = 9


def multiply_q8(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply with weights, from interleaved rows in buffers or textures."""
    if not _takes_q8(launch, capabilities):
        return None
    require_whole(launch)
    n = launch.count("n")
    textured = lies_in_texture(launch, "weights", capabilities)
    dtype = launch.operands["weights"].spec.dtype
    tile = select_tile(capabilities, "matmul_q8_texture" if textured else "matmul_q8", dtype, n)
    whole = textured or get_attributes(launch).epilogue.is_rounded
    rows = GROUP // LANES if whole else tile.rows
    depth = 1 if whole else interleave_depth(launch.out.shape[-1], rows)
    sources, parts = joined_rows(launch), get_attributes(launch).prologue.parts
    columns = parts * even_share(n // parts, tile.columns // parts)

    def groups(weight_rows: int) -> Groups:
        x, y, _ = grid_for(interleaved_groups(weight_rows // sources, rows, depth))
        return (x, y, -(-n // columns))

    sizes = {"COLS": columns, "ROWS": rows, "SOURCES": sources, "WG": LANES}
    choices = {**_q8_attributes(launch), **sizes, "sums": f"{LIB}/sums_of_pairs"}
    choices |= _from_texture(launch) if textured else _from_planes(launch, columns, depth)
    if shuffles(capabilities):
        if launch.choices["x"] == ROW:
            choices["x"] = f"{LIB}/column_shuffled"
        choices |= {} if textured else {"words": f"{LIB}/words_u64"}
    return replace(launch, shader=IN_BYTES, groups=groups, choices=choices)


def _takes_q8(launch: Launch, capabilities: Capabilities) -> bool:
    """Return whether the kernels can apply the prologue and the epilogue.

    A work group makes 32 rows of a column, which are a group: lanes that shuffle round it. They
    store a sum of squares for a norm.
    """
    found = get_attributes(launch)
    epilogue = found.epilogue
    sums = launch.choices.get("ADDS") and epilogue.is_rounded
    if not found.prologue.in_bytes or (epilogue.norm and not sums):
        return False
    bound = BINDINGS if epilogue.norm else 0
    rounds = shuffles(capabilities) and capabilities.max_storage_bindings >= bound
    in_rows = epilogue.form == "q8" and not epilogue.planar
    return not epilogue.is_rounded or (rounds and in_rows)


def _q8_attributes(launch: Launch) -> dict[str, str | int | float]:
    """Return the shader choices of prologue and epilogue."""
    found, given = get_attributes(launch), dict(launch.choices)
    given |= {"NORMED": found.prologue.eps is not None, "PARTS": found.prologue.parts}
    if not found.epilogue.is_rounded:
        return given
    if found.epilogue.norm:
        # This epilogue always adds, and does not declare the choice.
        del given["ADDS"]
        vectors = {"addend": "formats/vec4/f32", "scale": "formats/vec4/f32"}
        return {**given, **vectors, "lane_epilogue": f"{EPILOGUE}/q8_summed"}
    return {**given, "lane_epilogue": f"{EPILOGUE}/q8_rounded"}


def _from_texture(launch: Launch) -> dict[str, str | int]:
    """Return the shader choices for a weight in the layout `layouts.block_texture`."""
    return {**groups_in_texture(launch, "weights"), "GROUPS": launch.count("groups")}


def _from_planes(launch: Launch, columns: int, depth: int) -> dict[str, str | int]:
    """Return the shader choices of a product that reads a weight's planes, in interleaved rows."""
    block = groups_per_iteration(launch, columns)
    known = _known_groups(launch)
    weights = f"{FOLDER}/dot/{launch.operands['weights'].spec.dtype}"
    sizes = {"BLOCK": block, "AT_ONCE": block, "GROUPS": known, "INTERLEAVE": depth}
    return {"weights": weights, **sizes}


def _known_groups(launch: Launch) -> int:
    """Return the number of groups in a row if a kernel with that constant is faster; else 0."""
    short = launch.operands["weights"].spec.dtype in SHORT
    return launch.count("groups") if short else 0


def groups_per_iteration(launch: Launch, columns: int) -> int:
    """Return the groups of an iteration, whose scales are one load; one for many columns."""
    even = launch.count("groups") % 2 == 0
    short = launch.operands["weights"].spec.dtype in SHORT
    return 2 if even and short and columns <= SHORT_COLUMNS else 1


BY_EXPERT = f"{FOLDER}/matmul_by_expert"
# Rows of an expert that a lane takes of one pair, or of a tile. Four rows of one pair were slower.
PAIR_ROWS, TILE_ROWS = 2, 4


def multiply_by_expert(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of a product by expert: token by token, or in tiles of one expert."""
    if is_plain(launch) or is_gated(launch) or get_attributes(launch).prologue != VALUES:
        return None
    rows = TILE_ROWS if in_tiles(launch) else PAIR_ROWS
    return _by_lanes(launch, capabilities, rows, pairs_per_tile(launch))


def _by_lanes(launch: Launch, capabilities: Capabilities, rows: int, columns: int) -> Launch:
    choices = {**launch.choices, "ROWS": rows, "COLS": columns, "WG": LANES}
    if shuffles(capabilities):
        choices["vec4s"] = f"{LIB}/vec4_shuffled"
        if launch.operands["x"].spec.dtype == F32:
            choices["x"] = f"{LIB}/f32_by_u64"
    return by_rows(replace(launch, shader=BY_EXPERT, choices=choices), LANES * rows)


BY_EXPERT_IN_BYTES = f"{FOLDER}/matmul_q8_by_expert"
# Up to so many pairs products wait for memory, so lines are touched before they are needed.
TOUCHED_PAIRS = 8


def multiply_by_expert_q8(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of a product by expert: token by token, or in tiles of one expert."""
    if is_plain(launch) or is_gated(launch) or get_attributes(launch).prologue != Q8:
        return None
    dtype = launch.operands["weights"].spec.dtype
    tiles, columns = in_tiles(launch), pairs_per_tile(launch)
    short = columns <= SHORT_COLUMNS and dtype in SHORT
    choices = {
        **launch.choices,
        "weights": f"{FOLDER}/dot/{dtype}",
        "sums": f"{LIB}/sums_of_pairs",
        "ROWS": TILE_ROWS,
        "COLS": columns,
        "BLOCK": groups_per_iteration(launch, columns),
        "GROUPS": launch.count("groups") if short else 0,
        "TOUCH": not tiles and launch.count("pairs") <= TOUCHED_PAIRS and has_short_rows(launch),
        "WG": LANES,
    }
    if shuffles(capabilities):
        choices |= {"x": f"{LIB}/column_shuffled", "words": f"{LIB}/words_u64"}
    return by_rows(replace(launch, shader=BY_EXPERT_IN_BYTES, choices=choices), LANES * TILE_ROWS)


@linear_by_expert.fuses("linear_by_expert", name="linear_by_expert_q8", coarse=True)
def in_eight_bits(node: OpNode, graph: Graph) -> Node | None:
    """Round the activations of an expert product to eight bits, if its format allows that."""
    weights, x = node.arguments("weights", "x")
    fits = weights.spec.dtype in FORMATS and x.spec.dtype == F32 and not is_plain(node.launch)
    fits = fits and not is_gated(node.launch)
    if (
        not graph.capabilities.software
        or get_attributes(node.launch).prologue != VALUES
        or not fits
    ):
        return None
    return rebuild_product(node, graph, x=graph.shared(q8_activations, x), prologue=Q8)
