"""Matrix products of many columns in f16, on pairs of f16 from two rows of the weight.

A multiply-add of a pair multiplies two rows by one column, so the halves need not be added up.
Quants are integers, which f16 holds exactly. Weights of formats with minima, or with scales for
half a group, are rounded to 11 bits. Columns are divided by a power of two each, rounded to f16
once, and stored with all values of one k next to each other.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Groups, Launch, Node
from wgpu_backend.kernels.gpu.matvec import TABLES, table
from wgpu_backend.kernels.gpu.register_tiles import HALVED, WITH_MINIMA, ZEROS, grid, pair_tile
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.check import grid_for, require_dtype, require_rank
from wgpu_backend.ops.linear.attributes import Prologue, get_attributes
from wgpu_backend.ops.linear.f16_groups import (
    COLUMNS_ALIGNED,
    WEIGHTS,
    f16_columns_reference,
    f16_columns_spec,
)
from wgpu_backend.ops.linear.gates import require_whole
from wgpu_backend.ops.linear.q8_rounding import require_groups
from wgpu_backend.ops.op import op

SHADER = "kernels/gpu/matmul_pairs"
IN_COLUMNS = Prologue("f16_columns")
FORMATS = (*WEIGHTS, BF16)
LIB = "kernels/gpu/lib"
# Rows of a result that are stored in one access.
VECTOR = 4


@op(
    select=no_kernel("f16_columns", "a GPU with arithmetic in f16", "the values as they are"),
    shader="kernels/gpu/f16_columns",
    dense=("x",),
    trusted=True,
)
def f16_columns(x: Node) -> Launch:
    """Round rows to f16 for `linear`, transposed, so that all rows' values of one k are adjacent.

    Parameters
    ----------
    x : (..., k), f32
        `k` a multiple of 32. A row whose magnitudes are all at most 2^-100 counts as zero.
        Every product with a row that has an infinity or NaN is NaN.

    Returns
    -------
    (..., words), u32
        First, for each k, the values of all rows in f16, two in a word; rows are padded to a
        multiple of 8. Each row is divided by the power of two that brings its largest magnitude
        to at least 4 and less than 8. Then these powers in f32, then zeros up to whole rows.

    Raises
    ------
    ShapeError
        `k` is not a multiple of 32.
    DeviceError
        Raised when it runs: the device has no arithmetic in f16.
    """
    require_rank("f16_columns", "x", x, 1)
    require_dtype("f16_columns", "x", x, (F32,))
    k = require_groups("f16_columns", x)
    out = f16_columns_spec(x.spec.shape[:-1], k)
    rows = x.spec.size // k if k else 0
    return Launch(
        out,
        {"x": x},
        groups=grid_for(-(-rows // COLUMNS_ALIGNED)),
        params={"rows": rows, "vectors": k // VECTOR, "words": out.size},
        work=2 * x.spec.nbytes,
    )


f16_columns.reference(f16_columns_reference)


def select_f16_columns(launch: Launch, _: Capabilities) -> Launch:
    """Return the op's own launch, in which a workgroup rounds eight rows."""
    return launch


def matmul_pairs(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of a product of many columns on pairs of rows; None if it does not fit."""
    found = get_attributes(launch)
    plain = not found.epilogue.is_rounded and not found.epilogue.norm
    if found.prologue != IN_COLUMNS or not plain:
        return None
    require_whole(launch)
    weight, n, split = launch.operands["weights"].spec, launch.count("n"), "SPLIT" in launch.choices
    groups = launch.count("groups")
    # Slabs must divide whole rows and parts of rows.
    slabs = gcd(groups, launch.count("part_groups")) if split else groups
    tile, choices = pair_tile(weight.dtype, weight.shape[0], n, slabs, capabilities, split=split)
    parts = launch.out.shape[0] if split else 0
    # A weight in several bindings is cut at any row, so its parts may be unaligned.
    whole = weight.nbytes <= capabilities.max_binding_nbytes
    vectors = launch.count("m") % VECTOR == 0 and whole

    def work_groups(rows: int) -> Groups:
        return grid(rows, n, tile, parts)

    return replace(
        launch,
        shader=SHADER,
        groups=work_groups,
        params={"part_groups": 0, **launch.params},
        choices={
            **launch.choices,
            **choices,
            **_rows(weight.dtype),
            "y": f"kernels/gpu/result/{'vectors' if vectors else 'numbers'}",
        },
    )


def _rows(dtype: DType) -> dict[str, str | float | bool]:
    """Return the shader modules and constants with which threads load pairs of rows."""
    if dtype in (F16, BF16):
        weights = f"{LIB}/weights_f16" if dtype == F16 else "formats/vec4/bf16"
        return {"weights": weights, "rows": f"{LIB}/pair_rows_{dtype}"}
    minima = dtype in WITH_MINIMA
    return {
        "weights": f"formats/int8/{dtype}",
        **(table(dtype) if dtype in TABLES else {}),
        "rows": f"{LIB}/pair_rows_bytes",
        "rows_INTEGERS": not (minima or dtype in HALVED),
        "rows_ZERO": float(ZEROS.get(dtype, 0)),
    }
