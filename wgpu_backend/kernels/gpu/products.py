"""Products on GPUs: with weights, by expert, and convolutions; in f32, eight bits or f16.

Each function takes the launch of `linear`, `linear_by_expert` or `convolve` and returns that of its
kernel, or None if the kernel lacks the prologue or epilogue, or is not for that number of columns.

Products by expert of few tokens give a work group some rows of the expert of one pair, as products
of few columns do, or of all experts of one token, whose results are summed. For many tokens they
are tiles of pairs of the same expert. Convolutions are tiled products whose columns are the patches
of pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from wgpu_backend.dtypes import F16, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.node import Groups, Launch
from wgpu_backend.kernels.gpu.matvec import (
    COLUMNS,
    TABLES,
    Extent,
    as_groups,
    as_vectors,
    fit_tile,
    reduction,
    table,
)
from wgpu_backend.kernels.gpu.register_tiles import (
    EXPERT_TILES,
    GROUP,
    WITH_MINIMA,
    ZEROS,
    f16_choices,
    f16_tile,
    f32_choices,
    f32_tile,
    grid,
    q8_tile,
)
from wgpu_backend.kernels.gpu.rows import IN_Q16
from wgpu_backend.kernels.gpu.rows import ROUNDING as IN_F16
from wgpu_backend.kernels.gpu.subgroups import eight_lanes
from wgpu_backend.ops.check import FLOATS, MAX_GROUPS, grid_for, require
from wgpu_backend.ops.linear.attributes import VALUES, Epilogue, Form, Prologue, get_attributes
from wgpu_backend.ops.linear.f16_groups import NIBBLES
from wgpu_backend.ops.linear.gates import joined_rows, lies_whole, require_whole
from wgpu_backend.ops.linear.portable import storage_bindings
from wgpu_backend.ops.linear.q8 import FORMATS
from wgpu_backend.ops.linear.tiles import FEW
from wgpu_backend.ops.moe.experts import by_rows, in_tiles, is_plain, pairs_per_tile

FOLDER = "kernels/gpu"
TILED, TILED_Q8 = f"{FOLDER}/matmul_tiled", f"{FOLDER}/matmul_tiled_q8"
FEW_ROUNDED = "matvec_q8"
# Threads of a work group that rounds, at least: eight columns of eight lanes.
ROUNDING_THREADS = 128
TILED_F16 = {"tile": "kernels/gpu/lib/tile_f16"}
# Forms of x that a kernel takes.
F32_FORMS: tuple[Form, ...] = ("values",)
BYTE_FORMS: tuple[Form, ...] = ("q8", "q8_pair")
Q16_FORMS: tuple[Form, ...] = ("q16",)
F16_FORMS: tuple[Form, ...] = ("f16", "f16_nibbles")
PLAIN_F16 = {"weights": "kernels/gpu/lib/weights_f16", "rows": "kernels/gpu/lib/tile_rows_f16"}


def multiplies_f16(capabilities: Capabilities) -> bool:
    """Return whether pairs of f16 can be multiplied."""
    return capabilities.f16 and not capabilities.software


def matvec(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch for few columns; the weight's format selects a lane's code."""
    n, norm = launch.count("n"), get_attributes(launch).prologue.norm
    if not _takes(launch, F32_FORMS, norms=True) or not 0 < n <= COLUMNS:
        return None
    dtype = launch.operands["weights"].spec.dtype
    snippets = shares(dtype)
    # Unpacked weights of all rows stay in registers while several columns take their turns.
    rows = (4 if n == 1 else 2) * (2 if dtype in FLOATS else 1)
    before = {"NORMED": True, "prologue": f"{FOLDER}/prologue/norm", "gain": "formats/vec4/f32"}
    launch = replace(launch, choices={**launch.choices, **snippets, **(before if norm else {})})
    return as_vectors(launch, "matvec", Tile(rows, FEW, 64), capabilities, int(norm))


def shares(dtype: DType) -> dict[str, str]:
    """Return the shader choices of how a lane reads and multiplies its share of a row, in f32."""
    if dtype in FLOATS:
        return {"share": "kernels/gpu/share/floats", "weights": f"kernels/gpu/vectors/{dtype}"}
    if dtype in FORMATS:
        return {"share": "kernels/gpu/share/integers", "weights": f"formats/int8/{dtype}"}
    return {"share": "kernels/gpu/share/values", "weights": f"formats/dequant/{dtype}"}


def tiles_in_f16(capabilities: Capabilities) -> bool:
    """Return whether tiles of f16 pairs are faster; not on devices with few registers."""
    return multiplies_f16(capabilities) and not capabilities.few_registers


def matmul_tiled(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch for many columns, in f32."""
    if not _takes(launch, F32_FORMS):
        return None
    m, n = _extents(launch)
    dtype = launch.operands["weights"].spec.dtype
    return _tile(launch, TILED, *f32_tile(m, n, capabilities, dtype, split=_is_part(launch)))


def matmul_tiled_f16(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch for many columns in pairs of f16; None if that is not precise enough."""
    found = get_attributes(launch)
    # What a norm leaves to a product is not made here.
    if found.precision != "f16" or found.prologue.eps is not None:
        return None
    if not _takes(launch, F32_FORMS):
        return None
    m, n = _extents(launch)
    dtype = launch.operands["weights"].spec.dtype
    tile, choices = f16_tile(m, n, capabilities, dtype, split=_is_part(launch))
    return _tile(launch, TILED, tile, {**choices, **TILED_F16, **_tile_rows(dtype, capabilities)})


def _tile_rows(dtype: DType, capabilities: Capabilities) -> Mapping[str, str | bool]:
    """Return how threads load rows of a tile in f16: as they are, packed, or as f32."""
    if dtype == F16:
        return PLAIN_F16
    if dtype in FORMATS and dtype not in TABLES:
        return {
            "weights": f"formats/int8/{dtype}",
            "rows": "kernels/gpu/lib/tile_rows_bytes",
            "rows_MINIMA": dtype in WITH_MINIMA,
            # GPUs that multiply packed bytes also multiply f16 by f32.
            "rows_IN_F16": not capabilities.integer_dot,
        }
    return {}


def matvec_q8(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch for few columns in eight bits."""
    dtype = launch.operands["weights"].spec.dtype
    # Filling the table takes time, so more rows share one.
    rows = 8 if dtype in TABLES and launch.count("n") == 1 else 4
    return _few_rounded(
        launch, BYTE_FORMS, {"weights": f"formats/int8/{dtype}"}, rows, capabilities
    )


def matvec_q16(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch for few columns in sixteen bits."""
    dtype = launch.operands["weights"].spec.dtype
    shares = {
        "weights": f"formats/int8/{dtype}",
        "x": "kernels/gpu/lib/column_q16",
        "pair": "kernels/gpu/product/q16",
        "ZERO": float(ZEROS.get(dtype, 0)),
    }
    return _few_rounded(launch, Q16_FORMS, shares, 8 if launch.count("n") == 1 else 4, capabilities)


def matvec_f16(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch for few columns that were rounded to f16 by groups."""
    dtype = launch.operands["weights"].spec.dtype
    shares = _shares_in_f16(dtype, get_attributes(launch).prologue)
    return _few_rounded(launch, F16_FORMS, shares, 8 if launch.count("n") == 1 else 4, capabilities)


def _few_rounded(
    launch: Launch,
    forms: Sequence[Form],
    shares: Mapping[str, str | float],
    rows: int,
    capabilities: Capabilities,
) -> Launch | None:
    """Return the launch of a product of few rounded columns, whose results may be rounded, too."""
    found = get_attributes(launch)
    rounds = _rounds(launch, capabilities)
    if not _takes(launch, forms, rounds=rounds) or not 0 < launch.count("n") <= COLUMNS:
        return None
    launch = _with_prologue(launch, found.prologue, shares)
    squares = 0 if found.prologue.eps is None else 1
    if found.epilogue.is_rounded:
        launch = _with_rounding(launch, found.epilogue, capabilities)
        return as_groups(launch, FEW_ROUNDED, capabilities, squares)
    return as_vectors(launch, FEW_ROUNDED, Tile(rows, FEW, 64), capabilities, squares)


def _rounds(launch: Launch, capabilities: Capabilities) -> bool:
    """Return whether a device can round results: it needs enough lanes, buffers, and f16."""
    epilogue = get_attributes(launch).epilogue
    # Only the epilogue with a norm may need more bindings than every device has.
    bound = storage_bindings(launch) if epilogue.norm else 0
    able = not epilogue.form.startswith("f16") or capabilities.f16
    enough = capabilities.max_workgroup_invocations >= ROUNDING_THREADS
    return able and enough and capabilities.max_storage_bindings >= bound


def _with_rounding(launch: Launch, epilogue: Epilogue, capabilities: Capabilities) -> Launch:
    """Return a launch whose work groups round their results."""
    choices: dict[str, str | int | float] = {
        "epilogue": f"{FOLDER}/epilogue/rounded",
        "addend": "formats/vec4/f32",
    }
    if epilogue.norm:
        choices |= {"made": f"{FOLDER}/epilogue/total", "scale": "formats/vec4/f32"}
    choices |= _into(epilogue) | eight_lanes(capabilities)
    return replace(launch, choices={**launch.choices, **choices})


def _into(epilogue: Epilogue) -> dict[str, str | int | float]:
    """Return the shader choices of the format that results are rounded to."""
    # q16 is always in planes.
    if epilogue.form == "q16":
        return {**IN_Q16}
    planar = {"PLANAR": epilogue.planar}
    if epilogue.form == "q8":
        return {**planar}
    return {**planar, **IN_F16, "NIBBLES": epilogue.form == "f16_nibbles"}


def _shares_in_f16(dtype: DType, prologue: Prologue) -> Mapping[str, str | float]:
    """Return how lanes read and multiply: groups of blocks, or eights of floats."""
    if dtype == F16:
        return {
            "weights": "kernels/gpu/lib/weights_f16",
            "x": "kernels/gpu/lib/column_eights_f16",
            "pair": "kernels/gpu/product/eights_f16",
            "UNITS": GROUP // 8,
        }
    # Weights stay packed, or else columns become what they stand for.
    way = "WHOLE_BYTES" if dtype in NIBBLES else "x_NIBBLES"
    whole = {way: True} if prologue.form == "f16_nibbles" else {}
    return {
        "weights": f"formats/int8/{dtype}",
        "x": "kernels/gpu/lib/column_f16",
        "pair": "kernels/gpu/product/f16",
        "ZERO": float(ZEROS.get(dtype, 0)),
        **whole,
    }


def matmul_tiled_q8(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch for many columns in eight bits."""
    if not _takes(launch, BYTE_FORMS):
        return None
    dtype = launch.operands["weights"].spec.dtype
    m, n = _extents(launch)
    weights = {"weights": f"formats/int8/{dtype}", **table(dtype)}
    launch = _with_prologue(launch, get_attributes(launch).prologue, weights)
    groups, split = launch.count("groups"), _is_part(launch)
    # Slabs must divide whole rows and parts of rows.
    groups = gcd(groups, launch.count("part_groups")) if split else groups
    found = q8_tile(dtype, m, n, groups, capabilities, split=split)
    return _tile(launch, TILED_Q8, *found)


def _takes(
    launch: Launch, forms: Sequence[Form], *, rounds: bool = False, norms: bool = False
) -> bool:
    """Return whether the kernels for x in `forms` can apply the prologue and the epilogue."""
    found = get_attributes(launch)
    prologue, epilogue = found.prologue, found.epilogue
    # Norms of values are made of rows alone; what leaves something for a norm rounds it.
    normed = prologue.form == "values" and prologue.eps is not None
    normed = normed and not (norms and prologue.norm)
    left = (epilogue.is_rounded and not rounds) or (epilogue.norm and not epilogue.is_rounded)
    if normed or left or prologue.form not in forms:
        return False
    require_whole(launch)
    return True


def _with_prologue(
    launch: Launch, prologue: Prologue, choices: Mapping[str, str | float]
) -> Launch:
    before = {"NORMED": prologue.eps is not None, "PARTS": prologue.parts}
    return replace(launch, choices={**launch.choices, **before, **choices})


def _extents(launch: Launch) -> tuple[int, int]:
    """Return the rows of the weight, and the columns."""
    return launch.operands["weights"].spec.shape[0], launch.count("n")


def _is_part(launch: Launch) -> bool:
    """Return whether work groups compute parts of k (split-K)."""
    return bool(launch.choices.get("SPLIT"))


def _tile(launch: Launch, shader: str, tile: Tile, choices: Mapping[str, str | int]) -> Launch:
    n, params = launch.count("n"), {"part_groups": 0, **launch.params}
    parts = launch.out.shape[0] if _is_part(launch) else 0

    def groups(rows: int) -> Groups:
        return grid(rows, n, tile, parts)

    return replace(
        launch,
        shader=shader,
        groups=groups,
        params=params,
        choices={**launch.choices, **choices},
    )


EXPERTS_TILED = "kernels/gpu/matmul_tiled_by_expert"
EACH_PAIR, SUMMED = "kernels/gpu/matvec_by_expert", "kernels/gpu/matvec_by_expert_sum"
# Threads of a work group, if rows are long enough.
EXPERT_THREADS = 64


def expert_matvec(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch that multiplies each pair of token and expert by itself."""
    tiled = is_plain(launch) or in_tiles(launch)
    if tiled or get_attributes(launch).prologue != VALUES:
        return None
    require_whole(launch)
    joins, dtype = joined_rows(launch), launch.operands["weights"].spec.dtype
    rows = joins * launch.count("m") * launch.count("pairs")
    tile = _expert_tile(Extent(rows, launch.count("groups"), 1), dtype, capabilities)
    sources = max(tile.rows, joins)
    sizes = {"ROWS": sources // joins, "SOURCES": sources, "SUMS": sources, "WG": tile.threads}
    lanes = reduction(sources, tile.threads, capabilities)
    choices = {**launch.choices, **shares(dtype), **table(dtype), **sizes, **lanes}
    return by_rows(replace(launch, shader=EACH_PAIR, choices=choices), sources // joins)


def expert_matvec_sum(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch that multiplies with all experts of a token, and sums."""
    if not lies_whole(launch.operands["weights"]):
        return None
    dtype, tokens = launch.operands["weights"].spec.dtype, launch.count("tokens")
    # The rows of all experts of a token are one long row.
    groups = launch.count("groups") * launch.count("used")
    tile = _expert_tile(Extent(launch.count("m") * tokens, groups, 1), dtype, capabilities)
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


def _expert_tile(extent: Extent, dtype: DType, capabilities: Capabilities) -> Tile:
    rows = 8 if dtype in FLOATS else 4
    return fit_tile(extent, Tile(rows, 1, EXPERT_THREADS), 0, capabilities)


def expert_matmul_tiled(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch that multiplies pairs of one expert together, in tiles."""
    if is_plain(launch) or not in_tiles(launch) or get_attributes(launch).prologue != VALUES:
        return None
    columns = pairs_per_tile(launch)
    require(
        # `expert_tiles` sized the tiles by `Capabilities.expert_tiles`, which must be this
        # kernel's.
        columns in EXPERT_TILES,
        ShapeError,
        f"linear_by_expert: tiles hold {columns} pairs, this device needs {list(EXPERT_TILES)}",
    )
    tile = EXPERT_TILES[columns]
    sizes = f32_choices(tile)
    if get_attributes(launch).precision == "f16":
        dtype = launch.operands["weights"].spec.dtype
        sizes = {**f16_choices(tile), **TILED_F16, **_tile_rows(dtype, capabilities)}
    choices = {**launch.choices, **sizes}
    return by_rows(replace(launch, shader=EXPERTS_TILED, choices=choices), tile.rows)


CONV_TILED = "kernels/gpu/conv_tiled"
# Outputs from which on a tile of rows is used. Fewer leave most of it empty.
FEWEST_OUTPUTS = 16


def are_tiles_possible(launch: Launch) -> bool:
    """Return whether a convolution is a product of tiles, by its channels, outputs and strides."""
    weight = launch.operands["weights"]
    rows, *_, channels = weight.spec.shape
    # A kernel that reads value by value, or a transposed convolution.
    if launch.shader or launch.choices["SPREAD"] or launch.choices["FLIPPED"]:
        return False
    in_groups = launch.count("group_outputs") < rows or channels % GROUP
    in_a_line = weight.spec.is_dense and weight.spec.offset % GROUP == 0
    return not in_groups and in_a_line and rows >= FEWEST_OUTPUTS and launch.out.size > 0


def conv_tiled(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of a convolution in tiles; None for other channels or strides."""
    if not are_tiles_possible(launch):
        return None
    weight = launch.operands["weights"]
    rows, *_, channels = weight.spec.shape
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
        shader=CONV_TILED,
        groups=grid(rows, n, tile),
        params={**launch.params, **params},
        choices=choices,
    )
