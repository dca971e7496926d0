"""Products of weights in blocks with activations in eight bits, a lane making whole rows."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import Q4_0, Q4_1, Q4_K, Q5_0, Q5_1
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Groups, Launch
from wgpu_backend.kernels.rasteriser.capabilities import LANES, shuffles
from wgpu_backend.kernels.rasteriser.folder import EPILOGUE, FOLDER, LIB
from wgpu_backend.kernels.rasteriser.interleaved_rows import interleave_depth, interleaved_groups
from wgpu_backend.kernels.rasteriser.textures import groups_in_texture, lies_in_texture
from wgpu_backend.ops.check import grid_for
from wgpu_backend.ops.linear.attributes import get_attributes
from wgpu_backend.ops.linear.gates import joined_rows, require_whole
from wgpu_backend.ops.linear.q8 import GROUP, ROW
from wgpu_backend.ops.linear.tiles import even_share, select_tile

SHADER = f"{FOLDER}/matmul_q8"
# Formats of which two groups in an iteration of the loop still fit the instruction cache, and how
# many columns leave registers for it.
SHORT = (Q4_0, Q4_1, Q5_0, Q5_1, Q4_K)
SHORT_COLUMNS = 2
BINDINGS = 9  # of the largest kernel: four planes of weights, and five


def product(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply with weights, from interleaved rows in buffers or textures."""
    if not _takes(launch, capabilities):
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
    choices = {**_attributes(launch), **sizes, "sums": f"{LIB}/sums_of_pairs"}
    choices |= _from_texture(launch) if textured else _from_planes(launch, columns, depth)
    if shuffles(capabilities):
        if launch.choices["x"] == ROW:
            choices["x"] = f"{LIB}/column_shuffled"
        choices |= {} if textured else {"words": f"{LIB}/words_u64"}
    return replace(launch, shader=SHADER, groups=groups, choices=choices)


def _takes(launch: Launch, capabilities: Capabilities) -> bool:
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


def _attributes(launch: Launch) -> dict[str, str | int | float]:
    """Return the choices of prologue and epilogue."""
    found, given = get_attributes(launch), dict(launch.choices)
    given |= {"NORMED": found.prologue.eps is not None, "PARTS": found.prologue.parts}
    if not found.epilogue.is_rounded:
        return given
    if found.epilogue.norm:
        del given["ADDS"]  # as it always does
        vectors = {"addend": "formats/vec4/f32", "scale": "formats/vec4/f32"}
        return {**given, **vectors, "lane_epilogue": f"{EPILOGUE}/q8_summed"}
    return {**given, "lane_epilogue": f"{EPILOGUE}/q8_rounded"}


def _from_texture(launch: Launch) -> dict[str, str | int]:
    """Return the choices of a product that reads a weight in the layout `layouts.block_texture`."""
    return {**groups_in_texture(launch, "weights"), "GROUPS": launch.count("groups")}


def _from_planes(launch: Launch, columns: int, depth: int) -> dict[str, str | int]:
    """Return the choices of a product that reads a weight's planes, in interleaved rows."""
    block = groups_per_iteration(launch, columns)
    known = _known_groups(launch)
    weights = f"{FOLDER}/dot/{launch.operands['weights'].spec.dtype}"
    sizes = {"BLOCK": block, "AT_ONCE": block, "GROUPS": known, "INTERLEAVE": depth}
    return {"weights": weights, **sizes}


def _known_groups(launch: Launch) -> int:
    """Return the groups of a row if a kernel compiled for them is faster; else 0."""
    short = launch.operands["weights"].spec.dtype in SHORT
    return launch.count("groups") if short else 0


def groups_per_iteration(launch: Launch, columns: int) -> int:
    """Return the groups of an iteration, whose scales are one load; one for many columns."""
    even = launch.count("groups") % 2 == 0
    short = launch.operands["weights"].spec.dtype in SHORT
    return 2 if even and short and columns <= SHORT_COLUMNS else 1
