"""Products of many columns in f16, in pairs that hold two rows of the weight each.

A multiply-add of a pair makes a product of two rows and one column, so halves need not be added up.
Quants are integers, which f16 has exactly; formats with minima, or scales for halves of a group,
are rounded to eleven bits. Columns are rounded to f16 once, all values of one k together, and each
is divided by one power of two.
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
# Rows of a result in whole vectors, which are stored in one access.
VECTOR = 4


@op(
    select=no_kernel("f16_columns", "a GPU with arithmetic in f16", "the values as they are"),
    shader="kernels/gpu/f16_columns",
    dense=("x",),
    trusted=True,
)
def f16_columns(x: Node) -> Launch:
    """Round whole rows to f16, with all rows' values of one k together, for `linear`.

    Parameters
    ----------
    x : (..., k), f32
        `k` a multiple of 32. A row of no magnitude above 2^-100 counts as zero; one with an
        infinity or NaN makes every product with it NaN.

    Returns
    -------
    (..., words), u32
        n rows are filled up to a multiple of 8. Of each k first, a pair in a word, the values of
        all rows, divided by powers of two that bring a row's largest magnitude to 4 or above, below
        8; then these powers in f32; then zeros up to whole rows of words.

    Raises
    ------
    ShapeError
        Rows are not whole groups of 32.
    DeviceError
        When it is run: the device has no arithmetic in f16.
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
    """Multiply many columns in pairs of rows."""
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
    # Parts of a weight in several bindings may begin with any row.
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
    """Return the choices of how threads load pairs of rows, and what they make of them."""
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
