"""Products of many columns by matrix units, which multiply small matrices in one instruction.

A device has units if its WebGPU implementation offers them, see `MatrixUnit`. Weights are unpacked
to f16 once for each tile, columns are rounded to f16 by whole rows, and sums are in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from wgpu_backend.dtypes import BF16, F16, F32, MXFP4, NVFP4, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit, Tile
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Groups, Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.kernels.gpu.register_tiles import GROUP, fits_experts, grid
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.check import grid_for, require, require_dtype, require_rank
from wgpu_backend.ops.linear.attributes import VALUES, Prologue, get_attributes
from wgpu_backend.ops.linear.epilogue_rules import rebuild_product
from wgpu_backend.ops.linear.f16_groups import ROW_TAIL, f16_rows_reference
from wgpu_backend.ops.linear.gates import joined_rows
from wgpu_backend.ops.linear.linear import WEIGHTS, linear
from wgpu_backend.ops.moe.expert_tiles import rebuild_product as rebuild_by_expert
from wgpu_backend.ops.moe.experts import by_rows, in_tiles, linear_by_expert, pairs_per_tile
from wgpu_backend.ops.op import op

SHADER, BY_EXPERT = "kernels/gpu/matmul_matrix", "kernels/gpu/matmul_matrix_by_expert"
IN_ROWS = Prologue("f16_rows")
# Scales of these may be any power of two, so their weights need not fit f16.
WIDE = (MXFP4, NVFP4, F32)
FORMATS = tuple(dtype for dtype in WEIGHTS if dtype not in WIDE)
# A core runs one group at a time, and large devices have 96 to 132 cores.
ENOUGH_GROUPS = 128
# Bytes from a row to the next in workgroup memory, see the shader.
STRIDE_NBYTES = 80


@dataclass(frozen=True, slots=True)
class Blocks:
    """The numbers of matrices that a workgroup computes.

    Parameters
    ----------
    down, across : int
        Subgroups along rows and columns.
    rows, columns : int
        Matrices of a subgroup.
    """

    down: int
    across: int
    rows: int
    columns: int

    def tile(self, unit: MatrixUnit) -> Tile:
        """Return the rows, columns and threads of a work group."""
        subgroups = self.down * self.across
        rows, columns = self.down * self.rows * unit.m, self.across * self.columns * unit.n
        return Tile(rows, columns, subgroups * unit.subgroup)

    def nbytes(self, unit: MatrixUnit) -> int:
        """Return the workgroup memory of the kernel, in bytes."""
        tile = self.tile(unit)
        results = 4 * 2 * self.down * self.across * unit.m * unit.n
        return STRIDE_NBYTES * (tile.rows + tile.columns) + results


# The largest first: each loads less for a product than the next, and makes fewer work groups.
BLOCKS = (
    Blocks(2, 2, 4, 4),
    Blocks(2, 2, 4, 2),
    Blocks(2, 2, 2, 2),
    Blocks(4, 1, 2, 1),
    # For devices with 16 KiB of workgroup memory.
    Blocks(2, 1, 2, 1),
)
# Subgroups along rows and columns of a tile of experts, and matrices of each along rows, by the
# pairs of an expert in one: what AMD's compiler keeps in registers, and what takes less memory.
EXPERT_BLOCKS = {
    32: ((2, 1, 4), (2, 1, 2)),
    64: ((4, 1, 2), (2, 1, 2)),
    128: ((2, 2, 4), (2, 2, 2)),
}
# Pairs of a tile, and how many an expert needs on average to make it pay: a wider tile fills less,
# and unpacks a weight for more columns (benchmarks/log/prompts-and-ops.md).
EXPERT_WIDTHS = ((128, 80), (64, 32), (32, 8))


def has_matrix_units(capabilities: Capabilities) -> bool:
    """Return whether a device multiplies matrices of f16, and some blocks fit it."""
    return capabilities.f16 and bool(_fitting(capabilities))


def _fitting(capabilities: Capabilities) -> list[Blocks]:
    """Return the blocks whose threads and workgroup memory a device has; none without units."""
    unit = capabilities.matrix
    if unit is None:
        return []
    return [
        blocks
        for blocks in BLOCKS
        if blocks.tile(unit).threads <= capabilities.max_workgroup_invocations
        and blocks.nbytes(unit) <= capabilities.max_workgroup_nbytes
    ]


def pick_blocks(m: int, n: int, capabilities: Capabilities, *, split: bool = False) -> Blocks:
    """Return the largest blocks that waste few columns and keep the device busy.

    Parameters
    ----------
    m, n : int
        Rows of the weight, and columns.
    split : bool
        Work groups take parts of k, see `kernels.gpu.split_k`, which makes enough of them.
    """
    unit = capabilities.matrix
    assert unit is not None
    fits = _fitting(capabilities)
    widths = {blocks: blocks.tile(unit).columns for blocks in fits}
    padded = {blocks: -(-n // width) * width for blocks, width in widths.items()}
    least = min(padded.values())
    # An eighth more columns than needed costs less than smaller blocks do.
    close = [blocks for blocks in fits if padded[blocks] <= least * 9 // 8]
    if split:
        return close[0]
    busy = [b for b in close if _count(m, n, b.tile(unit)) >= ENOUGH_GROUPS]
    return busy[0] if busy else close[-1]


def _count(m: int, n: int, tile: Tile) -> int:
    return -(-m // tile.rows) * -(-n // tile.columns)


def dialect(unit: MatrixUnit, tiles: Sequence[str], sums: str) -> dict[str, str | int]:
    """Return the shader choices for the matrix operations of a device's WebGPU implementation.

    Parameters
    ----------
    tiles : sequence of str
        Arrays of f16 in workgroup memory that matrices are loaded from.
    sums : str
        The array of f32 that they are stored in.
    """
    lib = f"lib/matrix/{unit.dialect}"
    choices: dict[str, str | int] = {
        "matrix": lib,
        **dict.fromkeys(tiles, f"{lib}_tile"),
        sums: f"{lib}_sums",
        "MAT_M": unit.m,
        "MAT_N": unit.n,
        "MAT_K": unit.k,
    }
    if unit.dialect == "naga":
        # Its types have their sizes in their names.
        choices["MatrixRows"] = f"coop_mat{unit.k}x{unit.m}<f16, A>"
        choices["MatrixColumns"] = f"coop_mat{unit.n}x{unit.k}<f16, B>"
        choices["MatrixSums"] = f"coop_mat{unit.n}x{unit.m}<f32, C>"
    return choices


def product_choices(
    blocks: Blocks, unit: MatrixUnit, dtype: DType, joined: int
) -> dict[str, str | int | float]:
    """Return the choices of a product's kernel; `joined` rows of the weight make one result."""
    tile = blocks.tile(unit)
    return {
        "weights": f"formats/dequant/{dtype}",
        **dialect(unit, ("tile_w", "tile_x"), "results"),
        "SUBGROUP": unit.subgroup,
        "WG": tile.threads,
        "DOWN": blocks.down,
        "ACROSS": blocks.across,
        "RM": blocks.rows,
        "RN": blocks.columns,
        "STEPS": GROUP // unit.k,
        "RESULTS": blocks.rows // joined,
        "W_ITEMS": ceil(tile.rows / tile.threads),
        "X_ITEMS": ceil(tile.columns * GROUP / 4 / tile.threads),
        # Weights that are f16 may be as large as those are; others are below a thousand.
        "W_SCALE": 1.0 if dtype in (F16, BF16) else 64.0,
    }


def matmul_matrix(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of a product of many columns on matrix units; None if it does not fit."""
    found, unit = get_attributes(launch), capabilities.matrix
    plain = not found.epilogue.is_rounded and not found.epilogue.norm
    if unit is None or found.prologue != IN_ROWS or not plain:
        return None
    weight, n = launch.operands["weights"].spec, launch.count("n")
    split = bool(launch.choices.get("SPLIT"))
    blocks = pick_blocks(weight.shape[0], n, capabilities, split=split)
    tile = blocks.tile(unit)
    parts = launch.out.shape[0] if split else 0

    def groups(rows: int) -> Groups:
        return grid(rows, n, tile, parts)

    choices = product_choices(blocks, unit, weight.dtype, joined_rows(launch))
    params = {"part_groups": 0, **launch.params}
    return replace(
        launch,
        shader=SHADER,
        groups=groups,
        params=params,
        choices={**launch.choices, **choices},
    )


def expert_blocks(columns: int, capabilities: Capabilities) -> Blocks | None:
    """Return the largest blocks for tiles of so many pairs of an expert; None if none fits."""
    unit = capabilities.matrix
    if unit is None or not capabilities.f16:
        return None
    # A pair and its power of two lie beside the tiles.
    most = capabilities.max_workgroup_nbytes - 8 * columns
    for down, across, rows in EXPERT_BLOCKS.get(columns, ()):
        blocks = Blocks(down, across, rows, columns // (across * unit.n))
        threads = blocks.tile(unit).threads
        if blocks.nbytes(unit) <= most and threads <= capabilities.max_workgroup_invocations:
            return blocks
    return None


def with_expert_widths(capabilities: Capabilities) -> Capabilities:
    """Return capabilities with the tiles of experts that a device with units has.

    Products that are not by units take tiles as wide, in f32 in some cases.
    """
    fits = [
        each
        for each in EXPERT_WIDTHS
        if expert_blocks(each[0], capabilities) and fits_experts(each[0], capabilities)
    ]
    return replace(capabilities, expert_tiles=tuple(fits)) if fits else capabilities


def expert_matmul_matrix(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of a product by expert on matrix units; None if it does not fit."""
    if get_attributes(launch).prologue != IN_ROWS or not in_tiles(launch):
        return None
    unit, blocks = capabilities.matrix, expert_blocks(pairs_per_tile(launch), capabilities)
    if unit is None or blocks is None:
        return None
    choices = expert_choices(blocks, unit, launch.operands["weights"].spec.dtype)
    launch = replace(launch, shader=BY_EXPERT, choices={**launch.choices, **choices})
    return by_rows(launch, blocks.tile(unit).rows)


def expert_choices(blocks: Blocks, unit: MatrixUnit, dtype: DType) -> dict[str, str | int | float]:
    """Return the choices of the kernel for tiles of experts."""
    choices = product_choices(blocks, unit, dtype, 1)
    del choices["RESULTS"]
    return choices


@op(
    select=no_kernel("f16_rows", "a GPU with arithmetic in f16", "the values as they are"),
    shader="kernels/gpu/f16_rows",
    dense=("x",),
    trusted=True,
)
def f16_rows(x: Node) -> Launch:
    """Round whole rows to f16, for products by matrix units.

    Parameters
    ----------
    x : (..., k), f32
        `k` a multiple of 32.

    Returns
    -------
    (..., k + 8), f16
        Values of a row divided by a power of two, so that the largest magnitude is from 2^14 to
        below 2^15; then the exponent of that power, and seven zeros.

    Raises
    ------
    ShapeError
        Rows are not whole groups of 32.
    DeviceError
        When it is run: the device has no arithmetic in f16.
    """
    require_rank("f16_rows", "x", x, 1)
    require_dtype("f16_rows", "x", x, (F32,))
    *rows, k = x.spec.shape
    require(
        k % GROUP == 0 and k > 0,
        ShapeError,
        f"f16_rows: rows of x have {k} values, needs a multiple of {GROUP}",
    )
    count = x.spec.size // k
    return Launch(
        Spec.dense((*rows, k + ROW_TAIL), F16),
        {"x": x},
        groups=grid_for(count),
        params={"rows": count, "vectors": k // 4},
        work=2 * x.spec.nbytes,
    )


f16_rows.reference(f16_rows_reference)


def select_f16_rows(launch: Launch, _: Capabilities) -> Launch:
    """Return the op's own launch, with a workgroup for each row."""
    return launch


@linear.fuses("linear", name="linear_matrix", exact=False)
def in_matrices(node: OpNode, graph: Graph) -> Node | None:
    """Replace a product of many columns by the one on matrix units."""
    found, weight, x = get_attributes(node.launch), node.operands["weights"], node.operands["x"]
    if found.precision != "default" or found.prologue != VALUES or len(x.spec.shape) > 2:
        return None
    if not has_matrix_units(graph.capabilities) or weight.spec.dtype not in FORMATS:
        return None
    if node.launch.count("n") <= COLUMNS:
        return None
    return rebuild_product(
        node, graph, x=graph.shared(f16_rows, x), prologue=IN_ROWS, precision="f16"
    )


@linear_by_expert.fuses("linear_by_expert", name="linear_by_expert_matrix", exact=False)
def experts_in_matrices(node: OpNode, graph: Graph) -> Node | None:
    """Replace a product of tiles by expert by the one on matrix units."""
    found, weights, x = (
        get_attributes(node.launch),
        node.operands["weights"].spec,
        node.operands["x"],
    )
    if not in_tiles(node.launch) or found.precision != "default" or found.prologue != VALUES:
        return None
    if weights.dtype not in FORMATS or x.spec.dtype != F32:
        return None
    if expert_blocks(pairs_per_tile(node.launch), graph.capabilities) is None:
        return None
    rows = graph.shared(f16_rows, x)
    return rebuild_by_expert(node, graph, x=rows, prologue=IN_ROWS, precision="f16")
