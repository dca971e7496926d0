"""Tile sizes of products of many columns on GPUs, and the choices of their kernels.

A work group loads slabs of k through workgroup memory, and each of its threads sums some rows by
some columns in registers. The larger both are, the fewer loads a product takes; the smaller, the
more work groups there are to keep a device busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from types import MappingProxyType

from wgpu_backend.dtypes import (
    BF16,
    F16,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    DType,
)
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.node import Groups
from wgpu_backend.kernels.gpu.matvec import TABLE_NBYTES, TABLES
from wgpu_backend.ops.check import MAX_GROUPS
from wgpu_backend.ops.linear.tiles import TILES as TUNABLE
from wgpu_backend.ops.linear.tiles import Tiles, tuned_tile

# Values of k in a group. A slab has one group or two.
GROUP = 32
# Rows that a thread sums, by as many columns as the tile leaves it.
THREAD_ROWS = 8
# Tiles of products by expert without matrix units, by the pairs of an expert in one.
EXPERT_TILES = {32: Tile(64, 32, 64), 64: Tile(64, 64, 64), 128: Tile(64, 128, 128)}
# Threads of this tile sum four rows by four columns. For small products it makes four times as many
# work groups for 1.47 times the instructions (benchmarks/log/prompts-and-ops.md).
SMALL = Tile(32, 32, 64)
# Instructions per multiply-add, relative to the 128 x 64 tile: the larger a tile, the fewer loads.
TILES: Mapping[Tile, float] = MappingProxyType(
    {
        Tile(128, 128, 256): 0.98,
        Tile(128, 64, 128): 1.0,
        Tile(128, 64, 256): 1.2,
        Tile(64, 64, 128): 1.2,
        Tile(64, 64, 64): 1.03,
        Tile(128, 32, 64): 1.15,
        Tile(64, 32, 64): 1.2,
        Tile(128, 16, 32): 1.25,
        Tile(64, 16, 32): 1.4,
    }
)
# Tiles of pairs of rows in f16, of which each thread sums eight rows by eight columns.
PAIR_TILES: Mapping[Tile, float] = MappingProxyType(
    {
        Tile(128, 128, 256): 0.96,
        Tile(128, 64, 128): 1.0,
        Tile(64, 64, 64): 1.01,
        Tile(128, 32, 64): 1.07,
        Tile(64, 32, 32): 1.1,
        Tile(128, 16, 32): 1.2,
    }
)
# Products that are tuned by themselves.
IN_F32, IN_F16, IN_BYTES = "matmul_tiled", "matmul_tiled_f16", "matmul_tiled_q8"
IN_PAIRS = "matmul_pairs"
TUNABLE.update(dict.fromkeys((IN_F32, IN_F16, IN_BYTES), Tiles({"many": tuple(TILES)})))
TUNABLE[IN_PAIRS] = Tiles({"many": tuple(PAIR_TILES)})
# Tiles up to this much dearer than the cheapest may be chosen to fill the device.
NEARLY = 1.05
# Threads that keep a device busy.
ENOUGH_THREADS = 16384
# Each core of a device runs a work group, and large devices have 96 to 132 cores.
ENOUGH_GROUPS = 128
# Threads that leave most of a large device idle: with `SMALL` there are four times as many.
FEW_THREADS = 8192
# Threads that would leave any device idle.
FEWEST_THREADS = 512
# Parts of k with work groups of their own, and values of k in one: in shorter parts the
# instructions around the loop dominate.
MOST_PARTS, FEWEST_VALUES = 8, 512
# Groups of a slab of the weight that a thread loads.
MOST_ITEMS = 8
# Vectors of four words of a column's group in eight bits, which threads share.
COLUMN_VECTORS = 3
# Groups of 32 values in a slab. Two take half the barriers; one is for devices with few registers.
SLABS = (2, 1)
# The quant that stands for 0, of formats where all groups have the same one; formats with minima.
ZEROS = {Q4_0: 8, Q5_0: 16, Q3_K: 4, Q6_K: 32, MXFP4: 12}
WITH_MINIMA = (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K)
# Rows that a thread multiplies at once in f16.
F16_ROWS = 4
# Rows that a thread multiplies at once where each has two sums. Eight spilled registers on navi31.
HALVED_ROWS = 4
# Sums of a thread on devices with few registers. On Battlemage, tiles of f16 with 64 sums spilled
# 1,900 registers.
FEW_SUMS = 32
# Values of k whose products are written out where compilers are slow: a tile of all 32 took four
# minutes.
SLOWLY_COMPILED = 2
# Formats with a scale for each half of a group.
HALVED = (Q2_K, Q3_K, Q6_K)


def pick_tile(m: int, n: int, tiles: Sequence[Tile]) -> Tile:
    """Return a tile that keeps a device busy, from those that are nearly the cheapest.

    Parameters
    ----------
    m, n : int
        Rows of the weight, and columns.
    tiles : sequence of Tile
        Those that a device can take, of `TILES`; not empty.
    """
    found = _pick_busy(m, n, {tile: TILES[tile] for tile in tiles})
    threads = found.threads * _count(m, n, found)
    # For up to 16 columns, half of the small tile's columns would be padding.
    fits = _pad_columns(n, SMALL) < 2 * _pad_columns(n, found)
    return SMALL if threads <= (FEW_THREADS if fits else FEWEST_THREADS) else found


def _pick_busy(m: int, n: int, costs: Mapping[Tile, float]) -> Tile:
    """Return a tile that keeps a device busy, or comes nearest to that, among the cheap ones."""
    whole = {tile: cost * _pad_columns(n, tile) for tile, cost in costs.items()}
    most = NEARLY * min(whole.values())
    cheap = sorted((tile for tile in whole if whole[tile] <= most), key=whole.__getitem__)
    busy = [tile for tile in cheap if _fills(m, n, tile)]
    return busy[0] if busy else max(cheap, key=lambda t: (t.threads * _count(m, n, t), -t.threads))


def _cheapest(n: int, tiles: Sequence[Tile]) -> Tile:
    """Return the tile with the fewest instructions."""
    return min(tiles, key=lambda tile: TILES[tile] * _pad_columns(n, tile))


def _fills(m: int, n: int, tile: Tile) -> bool:
    """Return whether all cores of a large device have enough work."""
    groups = _count(m, n, tile)
    return groups >= ENOUGH_GROUPS and groups * tile.threads >= ENOUGH_THREADS


def _best(
    shader: str,
    dtype: DType | None,
    m: int,
    n: int,
    fits: Sequence[Tile],
    device: Capabilities,
    split: bool = False,
) -> Tile:
    """Return the tile measured to be the fastest, unless it has more surplus columns.

    Parts of k make enough work groups, so for products in parts only the cheapest tile counts.
    """
    # Parts of k make enough work groups, so only the instructions count.
    found = _cheapest(n, fits) if split else pick_tile(m, n, fits)
    measured = tuned_tile(device, shader, dtype, n) if dtype else None
    if measured is None or measured not in fits:
        return found
    # `tune` measured 64 columns. A tile that pads more columns here would compute them in vain.
    return measured if _pad_columns(n, measured) <= _pad_columns(n, found) else found


def _pad_columns(n: int, tile: Tile) -> int:
    """Return the columns of a product including those that fill up its tiles."""
    return -(-n // tile.columns) * tile.columns


def _count(m: int, n: int, tile: Tile) -> int:
    return -(-m // tile.rows) * -(-n // tile.columns)


def grid(rows: int, n: int, tile: Tile, parts: int = 0) -> Groups:
    """Return the work groups over columns and rows; groups that share weight rows are consecutive.

    Parameters
    ----------
    rows : int
        Of the weight, in one dispatch.
    n : int
        Columns.
    parts : int
        Of k, each with work groups of its own; 0 where these take all of k.
    """
    tiles = -(-rows // tile.rows)
    if parts:
        return (-(-n // tile.columns), tiles, parts)
    return (-(-n // tile.columns), min(tiles, MAX_GROUPS), -(-tiles // MAX_GROUPS))


def tile_choices(tile: Tile) -> dict[str, str | int]:
    """Return the choices of a kernel that imports ``kernels/gpu/lib/tile_place``."""
    rows = THREAD_ROWS // 2 if tile == SMALL else THREAD_ROWS
    lane_rows = tile.rows // rows
    cols = tile.columns * lane_rows // tile.threads
    return {"WG": tile.threads, "LANE_ROWS": lane_rows, "ROWS": rows, "COLS": cols}


def f32_tile(
    m: int, n: int, capabilities: Capabilities, dtype: DType | None = None, *, split: bool = False
) -> tuple[Tile, dict[str, str | int]]:
    """Return the tile of a product in f32, and the choices of its kernel.

    Parameters
    ----------
    m, n : int
        Rows of the weight, and columns.
    dtype : DType or None
        Of the weight: what was measured of products with it counts.
    split : bool
        Work groups take parts of k, see `kernels.gpu.split_k`.
    """
    fits = [
        tile
        for tile in TILES
        if tile.threads <= capabilities.max_workgroup_invocations
        and _fits_registers(tile, capabilities)
        and _brings_evenly(tile, 1)
        and f32_nbytes(tile) <= capabilities.max_workgroup_nbytes
    ]
    tile = _best(IN_F32, dtype, m, n, fits, capabilities, split)
    return tile, {**f32_choices(tile), "AHEAD": not capabilities.few_registers}


def f16_tile(
    m: int, n: int, capabilities: Capabilities, dtype: DType | None = None, *, split: bool = False
) -> tuple[Tile, dict[str, str | int]]:
    """Return the tile of a product in pairs of f16, and its kernel's choices; see `f32_tile`."""
    fits = [
        tile
        for tile in TILES
        if tile.threads <= capabilities.max_workgroup_invocations
        and _brings_evenly(tile, 1)
        and (2 * GROUP + 4) * (tile.rows + tile.columns) <= capabilities.max_workgroup_nbytes
    ]
    tile = _best(IN_F16, dtype, m, n, fits, capabilities, split)
    return tile, f16_choices(tile)


def f16_choices(tile: Tile) -> dict[str, str | int]:
    """Return the choices of a kernel that imports ``kernels/gpu/lib/tile_f16``."""
    return {
        **tile_choices(tile),
        "W_ITEMS": ceil(tile.rows / tile.threads),
        "X_ITEMS": ceil(tile.columns / tile.threads),
        "STEPS": int(tile_choices(tile)["ROWS"]) // F16_ROWS,
    }


def pair_tile(
    dtype: DType, m: int, n: int, groups: int, capabilities: Capabilities, *, split: bool = False
) -> tuple[Tile, dict[str, str | int]]:
    """Return the tile of a product in pairs of rows, and the choices of its kernel.

    Parameters
    ----------
    dtype : DType
        Of the weight.
    m, n : int
        Rows of the weight, and columns.
    groups : int
        Of 32 values in a row, or in a part of it.
    split : bool
        See `f32_tile`.
    """
    halved = dtype in (F16, BF16)
    summed = GROUP // 2 if halved else GROUP
    fits = {
        tile: cost
        for tile, cost in PAIR_TILES.items()
        if tile.threads <= capabilities.max_workgroup_invocations
        and groups % _pair_slab(tile) == 0
        and _pair_nbytes(dtype, tile) <= capabilities.max_workgroup_nbytes
    }
    if split:
        found = min(fits, key=lambda tile: fits[tile] * _pad_columns(n, tile))
    else:
        found = _pick_busy(m, n, fits)
    measured = tuned_tile(capabilities, IN_PAIRS, dtype, n)
    if measured in fits and _pad_columns(n, measured) <= _pad_columns(n, found):
        found = measured
    slab = _pair_slab(found)
    return found, {
        "WG": found.threads,
        "TILE_M": found.rows,
        "TILE_N": found.columns,
        "WARP_ROWS": 32 // min(4, found.columns // THREAD_ROWS),
        "SLAB": slab,
        "W_ITEMS": found.rows * slab // found.threads,
        "X_ITEMS": GROUP * slab * found.columns // THREAD_ROWS // found.threads,
        "rows_BY_HALVES": halved,
        "SCALES": 2 * slab if halved else slab,
        "SUMMED": summed,
        "WRITTEN_OUT": summed if capabilities.compiles_long_kernels else SLOWLY_COMPILED,
    }


def _pair_slab(tile: Tile) -> int:
    """Return the groups of a slab: enough for each thread to have something to load."""
    return max(1, tile.threads // tile.rows)


def _pair_nbytes(dtype: DType, tile: Tile) -> int:
    """Return the workgroup memory of ``matmul_pairs``, in bytes."""
    slab, halved = _pair_slab(tile), dtype in (F16, BF16)
    values = 2 * GROUP * slab * (tile.rows + tile.columns) + 2 * 4 * 16
    return values + 4 * slab * (2 if halved else 1) * tile.rows + _table_nbytes(dtype)


def _table_nbytes(dtype: DType) -> int:
    return TABLE_NBYTES if dtype in TABLES else 0


def f32_nbytes(tile: Tile) -> int:
    """Return the workgroup memory of ``kernels/gpu/lib/tile_f32``, in bytes."""
    return 4 * GROUP * (tile.rows + tile.columns)


def f32_choices(tile: Tile) -> dict[str, str | int]:
    """Return the choices of a kernel that imports ``kernels/gpu/lib/tile_f32``."""
    w_items, x_items = tile.rows / tile.threads, tile.columns * GROUP / 4 / tile.threads
    return {**tile_choices(tile), "W_ITEMS": ceil(w_items), "X_ITEMS": ceil(x_items)}


def fits_experts(columns: int, capabilities: Capabilities) -> bool:
    """Return whether a device holds a tile of so many pairs of an expert in f32, and the pairs."""
    tile = EXPERT_TILES[columns]
    nbytes = 4 * GROUP * (tile.rows + columns) + 4 * columns
    return nbytes <= capabilities.max_workgroup_nbytes and _fits_registers(tile, capabilities)


def q8_tile(
    dtype: DType, m: int, n: int, groups: int, capabilities: Capabilities, *, split: bool = False
) -> tuple[Tile, dict[str, str | int]]:
    """Return the tile of a product with eight-bit activations, and the choices of its kernel.

    Parameters
    ----------
    m, n : int
        Rows of the weight, and columns.
    groups : int
        Of 32 values in a row, or in a part of it.
    split : bool
        See `f32_tile`.
    """
    most = 1 if capabilities.few_registers else max(SLABS)
    slabs = [slab for slab in SLABS if groups % slab == 0 and slab <= most]
    fits = {
        tile: slab
        for slab in reversed(slabs)
        for tile in (*TILES, SMALL)
        if tile.threads <= capabilities.max_workgroup_invocations
        and _fits_registers(tile, capabilities)
        and _brings_evenly(tile, slab)
        # The small tile is for brief products: with slabs of one group it compiles faster.
        and (slab == 1 or tile != SMALL)
        # Q6_K spills registers where a thread loads more than one row.
        and (slab == 1 or dtype != Q6_K or tile.rows * slab <= tile.threads)
        and _q8_nbytes(dtype, tile, slab) <= capabilities.max_workgroup_nbytes
    }
    known = [tile for tile in TILES if tile in fits]
    tile = _best(IN_BYTES, dtype, m, n, known, capabilities, split)
    slab = fits[tile]
    return tile, {
        **tile_choices(tile),
        **_steps(dtype, tile, capabilities),
        "AHEAD": not capabilities.few_registers,
        "SLAB": slab,
        "W_ITEMS": ceil(tile.rows * slab / tile.threads),
        "X_ITEMS": ceil(COLUMN_VECTORS * tile.columns * slab / tile.threads),
        "OFFSET": ZEROS.get(dtype, 0),
        "MINIMA": dtype in WITH_MINIMA,
        # The zeros of both halves are subtracted in one sum. For Q2_K and Q3_K, whose products are
        # only some hundreds, that cost an NMSE of 1.05e-6 where `fma` rounds twice; the limit is
        # 1e-6.
        "ONE_ZERO": dtype == Q6_K,
        "SCALES": _scales(dtype),
        # Scales of MXFP4 go up to 2^127, so a scaled start of the sum could overflow.
        "FUSED": capabilities.fused and dtype != MXFP4,
    }


def _steps(dtype: DType, tile: Tile, capabilities: Capabilities) -> dict[str, int]:
    """Return how many rows a thread multiplies at once, and how often."""
    rows = int(tile_choices(tile)["ROWS"])
    halved = HALVED_ROWS // 2 if capabilities.few_registers else HALVED_ROWS
    step = min(rows, halved) if dtype in HALVED else rows
    return {"STEP_ROWS": step, "STEPS": rows // step}


def _fits_registers(tile: Tile, capabilities: Capabilities) -> bool:
    """Return whether a thread holds its sums and its factors in registers."""
    return not capabilities.few_registers or tile.rows * tile.columns <= FEW_SUMS * tile.threads


def _brings_evenly(tile: Tile, slab: int) -> bool:
    """Return whether threads share a tile's loads evenly; true for the smallest tile anyway."""
    items, surplus = divmod(tile.rows * slab, tile.threads)
    return tile == SMALL or (not surplus and items <= MOST_ITEMS)


def _q8_nbytes(dtype: DType, tile: Tile, slab: int) -> int:
    """Return the workgroup memory of ``matmul_tiled_q8``, in bytes."""
    of_rows = 2 * 16 * tile.rows + 64 + 4 * _scales(dtype) * tile.rows
    return slab * (of_rows + 16 * COLUMN_VECTORS * tile.columns) + _table_nbytes(dtype)


def _scales(dtype: DType) -> int:
    """Return how many numbers go with a group of weights, see ``kernels/gpu/lib/q8_slab``."""
    return 2 + (dtype in HALVED) + (dtype in WITH_MINIMA) * (1 + (dtype in HALVED))
