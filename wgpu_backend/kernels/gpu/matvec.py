"""Matrix-vector products on GPUs: how work groups share the rows and values of a weight.

A work group makes some rows, and its lanes stride over their values: the more lanes, the fewer
values each sums (split-K inside a work group). Sums of a lane stay in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from wgpu_backend.dtypes import IQ4_NL, IQ4_XS, MXFP4, Q8_0, DType
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.node import Groups, Launch
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes
from wgpu_backend.ops.check import grid_for
from wgpu_backend.ops.linear.attributes import get_attributes
from wgpu_backend.ops.linear.gates import joined_rows
from wgpu_backend.ops.linear.q8_rounding import GROUP, PLANAR_COLUMNS
from wgpu_backend.ops.linear.tiles import FEW, TILES, Class, Tiles, even_share, tuned_tile

# Columns of x at most. For more, tiles through workgroup memory read less of the weight.
COLUMNS = PLANAR_COLUMNS
# Rows times columns of a lane. With the weights of its rows they fill 128 registers.
SUMS = 32
# Threads of a dispatch below which large devices have idle cores. 2^14 to 2^17 made no difference
# on an H100 (benchmarks/log/prompts-and-ops.md).
FILLING = 1 << 15
# Threads of a work group.
FEWEST, MOST = 32, 256
# For one column in f16, which devices without dot products of bytes use. Such devices are smaller,
# so fewer threads keep them busy. Fewer lanes share a row, since the instructions around the loop
# weigh more. A work group takes several rows, so that its threads fill any subgroup.
FILLING_IN_F16 = 1 << 14
SHARING, WAVE = 32, 64
# Rows of a multiple of this many groups have scales that are whole words of each plane. Offsets of
# row and lane are then added separately, for up to this many columns: for more, compilers schedule
# the products worse.
ALIGNED, ALIGNED_COLUMNS = 16, 2
# Adjacent groups that a lane takes in each iteration for one column in f16, if all lanes have as
# many, and the module by format. Other formats would need so many registers that fewer waves run.
AT_ONCE, ITERATIONS = 2, {Q8_0: "kernels/gpu/lib/two_groups_q8_0"}
# Each part of a split weight begins at a multiple of so many rows.
ROW_STEP = 8
# The module that fills the lookup table, for formats whose quants are indices into a codebook.
TABLES = {IQ4_NL: "iq4", IQ4_XS: "iq4", MXFP4: "fp4"}
# Workgroup memory of a table: 256 words, one for each byte of two quants.
TABLE_NBYTES = 1024
# Rows of a weight per lane for one column, if a work group makes 32 rows of the result; for several
# columns, half as many.
SOURCES = 8
# Workgroup memory of each lane, through which eight lanes round a group.
EXCHANGED_NBYTES = 12
IN_F32, IN_BYTES = "matvec", "matvec_q8"


def _candidates() -> dict[Class, tuple[Tile, ...]]:
    """Return the tiles to choose from: registers hold more than four rows for one column only."""
    threads = (64, 32, 128)
    return {
        "one": tuple(Tile(rows, 1, t) for t in threads for rows in (4, 8, 2, 1)),
        "few": tuple(Tile(rows, FEW, t) for t in threads for rows in (4, 2, 1)),
    }


def _has_room(tile: Tile, capabilities: Capabilities, *, squares: int) -> bool:
    """Return whether registers hold the sums of two rows or more, and the squares of a norm."""
    return _fits(tile.threads, tile.columns * (max(tile.rows, 2) + squares), capabilities)


TILES[IN_F32] = Tiles(_candidates(), partial(_has_room, squares=0))
TILES[IN_BYTES] = Tiles(_candidates(), partial(_has_room, squares=1))


@dataclass(frozen=True, slots=True)
class Extent:
    """The sizes of a product: rows of the weight, groups of 32 in each, columns and their parts."""

    rows: int
    groups: int
    columns: int
    parts: int = 1


def fit_tile(
    extent: Extent, most: Tile, squares: int, capabilities: Capabilities, filling: int = FILLING
) -> Tile:
    """Return the tile of a product without measurements: `most` if that fills a device, else less.

    Parameters
    ----------
    most : Tile
        Rows and columns of a work group in a large product, and the threads it has there.
    squares : int
        Sums that a lane has of each column besides those of rows.
    filling : int
        Threads that fill a device.
    """
    columns = _columns(extent, most)
    rows, threads = most.rows, most.threads
    while rows > 1 and rows * columns > SUMS:
        rows //= 2
    # Lanes without a group of their own would do nothing.
    while threads > FEWEST and threads >= 2 * extent.groups:
        threads //= 2
    while threads * -(-extent.rows // rows) < filling:
        sums = columns * (rows + squares)
        if 2 * threads <= extent.groups and _fits(2 * threads, sums, capabilities):
            threads *= 2
        elif rows > 1:
            rows //= 2
        else:
            break
    return Tile(rows, columns, threads)


def _columns(extent: Extent, tile: Tile) -> int:
    """Return the columns of a workgroup, a multiple of the parts that a column is split into."""
    parts = extent.parts
    return parts * even_share(extent.columns // parts, max(tile.columns // parts, 1))


def _fits(threads: int, sums: int, capabilities: Capabilities) -> bool:
    """Return whether a device allows a work group of `threads`, with the memory to add up sums."""
    most = min(MOST, capabilities.max_workgroup_invocations)
    # One more number per sum than threads: numbers of one lane are in different banks then.
    nbytes = 4 * (threads + 1) * (sums + 1) + TABLE_NBYTES
    return threads <= most and nbytes <= capabilities.max_workgroup_nbytes


def as_vectors(
    launch: Launch,
    shader: str,
    most: Tile,
    capabilities: Capabilities,
    squares: int = 0,
) -> Launch:
    """Return the GPU launch of a product of few columns.

    Parameters
    ----------
    launch : Launch
        With `n` columns, `groups` of 32 in a row of its weights.
    shader : str
        ``matvec`` or ``matvec_q8``.
    most : Tile
        See `fit_tile`.
    squares : int
        Sums that a lane has of each column besides those of rows.
    """
    n, joins = launch.count("n"), joined_rows(launch)
    weights = launch.operands["weights"].spec
    parts = get_attributes(launch).prologue.parts
    extent = Extent(weights.shape[-2], launch.count("groups"), n, parts)
    alone = _is_f16_column(launch)
    most = replace(most, threads=SHARING) if alone else most
    tile = tuned_tile(capabilities, shader, weights.dtype, n)
    tile = tile or fit_tile(
        extent, most, squares, capabilities, FILLING_IN_F16 if alone else FILLING
    )
    rows = max(tile.rows // joins, 1)
    columns = _columns(extent, tile)
    sources = rows * joins
    sums = columns * (sources + squares)

    threads = max(tile.threads, WAVE) if alone else tile.threads

    def groups(weight_rows: int) -> Groups:
        x, y, _ = grid_for(-(-weight_rows // (sources * (threads // tile.threads))))
        return (x, y, -(-n // columns))

    sizes = {"COLS": columns, "ROWS": rows, "SOURCES": sources, "SUMS": sums, "WG": threads}
    sizes["LANES"] = tile.threads
    if shader == IN_BYTES:
        # Without a remainder of rows, in the weight and in each of its parts, every lane has all
        # rows.
        whole = weights.shape[-2] // joins % rows == 0 and ROW_STEP % rows == 0
        sizes |= {"WHOLE": whole, "ALIGNED": whole and _is_aligned(launch, columns)}
        sizes["ALONE"] = n == 1
        sizes |= _iteration(launch, tile.threads) if sizes["ALIGNED"] else {}
    choices = {**launch.choices, **sizes, **reduction(sums, tile.threads, capabilities)}
    choices |= table(weights.dtype)
    return replace(launch, shader=f"kernels/gpu/{shader}", groups=groups, choices=choices)


def as_groups(launch: Launch, shader: str, capabilities: Capabilities, squares: int = 0) -> Launch:
    """Return the GPU launch of a product that rounds its results, 32 rows per work group.

    Parameters
    ----------
    launch, shader, capabilities, squares
        See `as_vectors`.
    """
    n, joins = launch.count("n"), joined_rows(launch)
    threads = min(MOST, capabilities.max_workgroup_invocations)
    if _is_f16_column(launch) and launch.count("m") // GROUP * threads >= 2 * FILLING_IN_F16:
        threads //= 2
    columns, sources = _rounded_tile(n, joins, squares, threads, capabilities)
    rows = sources // joins
    sums = columns * (sources + squares)

    def groups(weight_rows: int) -> Groups:
        x, y, _ = grid_for(weight_rows // joins // GROUP)
        return (x, y, -(-n // columns))

    sizes = {"COLS": columns, "ROWS": rows, "SOURCES": sources, "SUMS": sums, "ALONE": n == 1}
    lanes = threads * rows // GROUP
    sizes |= {"WG": threads, "LANES": lanes, "WHOLE": True, "ALIGNED": _is_aligned(launch, columns)}
    sizes |= _iteration(launch, lanes) if sizes["ALIGNED"] else {}
    dtype = launch.operands["weights"].spec.dtype
    choices = {**launch.choices, **sizes, **reduction(sums, lanes, capabilities), **table(dtype)}
    return replace(launch, shader=f"kernels/gpu/{shader}", groups=groups, choices=choices)


def _is_f16_column(launch: Launch) -> bool:
    """Return whether a launch has one column, in f16."""
    return launch.count("n") == 1 and get_attributes(launch).prologue.in_f16


def _is_aligned(launch: Launch, columns: int) -> bool:
    """Return whether an offset in a plane is a row's offset plus a lane's."""
    return launch.count("groups") % ALIGNED == 0 and columns <= ALIGNED_COLUMNS


def _iteration(launch: Launch, lanes: int) -> dict[str, str | int | bool]:
    """Return the shader choice of several groups per lane and iteration, if that pays."""
    dtype = launch.operands["weights"].spec.dtype
    groups = launch.count("groups")
    if not _is_f16_column(launch) or dtype not in ITERATIONS or groups % (AT_ONCE * lanes):
        return {}
    # Twice as many where there is no other iteration: in a loop they take twice the registers.
    all_at_once = groups == 2 * AT_ONCE * lanes
    return {
        "iteration": ITERATIONS[dtype],
        "GROUPS_AT_ONCE": (2 if all_at_once else 1) * AT_ONCE,
        "EVEN": True,
        "ONCE": all_at_once or groups == AT_ONCE * lanes,
    }


def _rounded_tile(
    n: int, joins: int, squares: int, threads: int, capabilities: Capabilities
) -> tuple[int, int]:
    """Return the columns of a workgroup that rounds its results, and the weight rows of a lane."""
    columns, sources = even_share(n, FEW), SOURCES if n == 1 else SOURCES // 2
    while columns * sources > SUMS and sources > joins:
        sources //= 2
    while columns > 1 and not _rounds(threads, columns * (sources + squares), capabilities):
        columns = -(-columns // 2)
    return columns, sources


def _rounds(threads: int, sums: int, capabilities: Capabilities) -> bool:
    """Return whether a device has the memory to add up the sums of a lane, and to round."""
    # Lanes of a subgroup leave a quarter of their sums to others.
    numbers = threads * -(-sums // 8) * 2 if capabilities.subgroups else (threads + 1) * (sums + 1)
    nbytes = 4 * numbers + EXCHANGED_NBYTES * threads + TABLE_NBYTES
    return nbytes <= capabilities.max_workgroup_nbytes


def table(dtype: DType) -> dict[str, str]:
    """Return the module that fills the lookup table of shaders with ``kernels/gpu/table``."""
    return {"table": f"kernels/gpu/table/{TABLES[dtype]}"} if dtype in TABLES else {}


def reduction(sums: int, lanes: int, capabilities: Capabilities) -> dict[str, str | int | bool]:
    """Return the shader choices that add up `sums` numbers of each of `lanes` lanes."""
    if capabilities.subgroups:
        # If one sum is left after groups of eight, all lanes add it up together.
        eighths = sums >= 8 and sums % 8 <= 1 and lanes >= 8 and has_eight_lanes(capabilities)
        return {
            "lanes": "kernels/gpu/lib/lane_sums_subgroup",
            "lanes_QUARTER": -(-sums // 8) * 2 if eighths else -(-sums // 4),
            "lanes_EIGHTHS": eighths,
        }
    return {"lanes": "kernels/gpu/lib/lane_sums_workgroup"}
