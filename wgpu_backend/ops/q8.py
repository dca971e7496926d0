"""Products of weights in blocks with activations in eight bits, summed as integers by groups of 32.

`q8_activations` rounds a tensor once, and each product of it is then two to ten times as fast as
with f32; `mulmat_q8` gives what `mulmat` gives of the rounded values. A norm between them comes in
two parts: `q8_weighted` takes its weight, the product its factor.
"""

from __future__ import annotations

import math
from dataclasses import replace

from wgpu_backend.device_info import Capabilities, Tile
from wgpu_backend.dtypes import (
    F32,
    IQ4_NL,
    IQ4_XS,
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
    Q8_0,
    U32,
)
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Groups, Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import (
    require,
    require_dtype,
    require_rank,
)
from wgpu_backend.ops.gates import fits_gated as fits_gated
from wgpu_backend.ops.gates import gated, require_whole
from wgpu_backend.ops.matvec import COLUMNS, as_vectors
from wgpu_backend.ops.op import op
from wgpu_backend.ops.q8_rounding import GROUP as GROUP
from wgpu_backend.ops.q8_rounding import WORDS as WORDS
from wgpu_backend.ops.q8_rounding import q8_activations as q8_activations
from wgpu_backend.ops.q8_rounding import q8_weighted as q8_weighted
from wgpu_backend.ops.q8_rounding import rounded_spec as rounded_spec
from wgpu_backend.ops.register_tiles import grid, q8_tile
from wgpu_backend.ops.tiles import FEW

FORMATS = (
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
)  # fmt: skip
TILED = "kernels/gpu/matmul_tiled_q8"
OWN = "column/own"  # how a kernel reads groups that are not planar


def fits_q8(weight: Node) -> bool:
    """Whether `mulmat_q8` takes a weight: one dense matrix in a format with an integer form."""
    spec = weight.spec
    return spec.dtype in FORMATS and spec.is_dense and len(spec.shape) == 2


def select_q8(launch: Launch, capabilities: Capabilities) -> Launch:
    """Pick the kernel: few columns, or tiles."""
    require_whole(launch)
    n = launch.count("n")
    few = 0 < n <= COLUMNS
    return _vector(launch, capabilities) if few else _tiles(launch, n, capabilities)


def _vector(launch: Launch, capabilities: Capabilities) -> Launch:
    weights = f"int8/{launch.operands['weights'].spec.dtype.name}"
    launch = replace(launch, choices={**launch.choices, "weights": weights})
    squares = 1 if launch.choices["NORMED"] else 0
    return as_vectors(launch, "matvec_q8", Tile(4, FEW, 64), capabilities, squares)


def _tiles(launch: Launch, n: int, capabilities: Capabilities) -> Launch:
    weight = launch.operands["weights"].spec
    m = weight.shape[0]
    tile, choices = q8_tile(weight.dtype, m, n, launch.count("groups"), capabilities)

    def groups(rows: int) -> Groups:
        return grid(rows, n, tile)

    return replace(launch, shader=TILED, groups=groups, choices={**launch.choices, **choices})


@op(select=select_q8, shader=TILED, dense=("x",), trusted=True)
def mulmat_q8(weight: Node, x: Node, *, eps: float | None = None) -> Launch:
    """Multiply rows of `x`, rounded to eight bits, with rows of `weight`.

    Parameters
    ----------
    weight : (m, k), dense, a format that `fits_q8` takes
    x : (..., k / 32, 12) or (3, ..., k / 32, 4), u32
        From `q8_activations`.
    eps : float or None
        Divide by the root of the mean square of `x` plus this: a norm, see `q8_weighted`.

    Returns
    -------
    (..., m), f32

    Raises
    ------
    ShapeError
        Row lengths differ, or `x` is not made of groups.
    DTypeError
        The format has no integer form.
    """
    return product("mulmat_q8", weight, x, eps)


def product(name: str, weight: Node, x: Node, eps: float | None, *, parts: int = 1) -> Launch:
    """Launch of a product, as `mulmat_q8` describes it; the kernels are those of `select_q8`.

    `parts` rows of `x` that lie side by side are added up to one of the result.
    """
    require_rank(name, "weight", weight, 2, 2)
    require_rank(name, "x", x, 2)
    require_dtype(name, "weight", weight, FORMATS)
    require_dtype(name, "x", x, (U32,))
    m, k = weight.spec.shape
    planar = len(x.spec.shape) > 2 and x.spec.shape[-1] != WORDS
    columns = x.spec.shape[1:-2] if planar else x.spec.shape[: -2 if parts == 1 else -3]
    groups = rounded_spec(columns, k // GROUP, planar, parts)
    require(
        weight.spec.is_dense and x.spec.shape == groups.shape and not (planar and x.spec.offset),
        ShapeError,
        f"{name}: x is {x.spec.shape}, rows of weight have {k} values of strides "
        f"{weight.spec.strides}; needs a dense weight and x of (..., {k // GROUP}, {WORDS})",
    )
    n = math.prod(columns) * parts
    return Launch(
        Spec.dense((*columns, m), F32),
        {"weights": weight, "x": x, "addend": x, "scale": x},
        params={"m": m, "n": n, "groups": k // GROUP, "addend_stride": 0, "eps": eps or 0.0},
        choices={
            "weights": f"dot/{weight.spec.dtype.name}",
            "x": "lib/planar_column" if planar else OWN,
            "addend": "load/f32",
            "NORMED": eps is not None,
            **({"PARTS": parts} if parts > 1 else {}),
        },
        work=weight.spec.nbytes + 2 * m * n * k,
    )


@op(select=select_q8, shader=TILED, dense=("x", "addend"), trusted=True)
def mulmat_q8_add(weight: Node, x: Node, addend: Node, *, eps: float | None = None) -> Launch:
    """Product as `mulmat_q8`, and a bias or a residual added where the product is stored.

    Parameters
    ----------
    weight, x, eps
        See `mulmat_q8`.
    addend : (m,) or (..., m), f32

    Returns
    -------
    (..., m), f32

    Raises
    ------
    ShapeError
        `addend` is neither a row nor like the result; and as `mulmat_q8`.
    """
    launch = added("mulmat_q8_add", product("mulmat_q8_add", weight, x, eps), addend)
    return replace(launch, choices={**launch.choices, "ADDS": True})


def added(name: str, launch: Launch, addend: Node) -> Launch:
    """Launch of a product, with a row or as many as the result has added to it.

    Raises
    ------
    ShapeError
        `addend` is neither a row nor like the result.
    """
    m, shape = launch.out.shape[-1], addend.spec.shape
    require(
        shape in ((m,), launch.out.shape),
        ShapeError,
        f"{name}: addend is {shape}, needs {(m,)} or {launch.out.shape}",
    )
    require_dtype(name, "addend", addend, (F32,))
    return replace(
        launch,
        operands={**launch.operands, "addend": addend},
        params={**launch.params, "addend_stride": 0 if shape == (m,) else m},
    )


@op(select=select_q8, shader=TILED, dense=("x",), trusted=True)
def mulmat_q8_gated(weight: Node, x: Node, *, activation: str, eps: float | None = None) -> Launch:
    """Join two products: ``act(gate) * up``, the gate being the first half of the rows of a weight.

    Parameters
    ----------
    weight : (2 m, k), dense, a format that `fits_q8` takes
        Rows lie in one binding of the device, see `fits_gated`.
    x : (..., k / 32, 12) or (3, ..., k / 32, 4), u32
        From `q8_activations`.
    activation : str
        silu, gelu, gelu_erf, quick_gelu or relu.
    eps : float or None
        See `mulmat_q8`.

    Returns
    -------
    (..., m), f32

    Raises
    ------
    ShapeError
        The weight has no halves, or there is no such activation; and as `mulmat_q8`.
    DeviceError
        When it is run: the weight lies in several bindings.
    """
    return gated("mulmat_q8_gated", product("mulmat_q8_gated", weight, x, eps), activation)


@op(select=select_q8, shader=TILED, dense=("x",), trusted=True)
def mulmat_q8_pair(weight: Node, x: Node) -> Launch:
    """Product of rows that were split into two: the sum of what `mulmat_q8` gives of each part.

    Parameters
    ----------
    weight : (m, k), dense, a format that `fits_q8` takes
    x : (..., 2, k / 32, 12) or (3, ..., k / 16, 4), u32
        From `q8_pair` or `rms_norm_pair`.

    Returns
    -------
    (..., m), f32

    Raises
    ------
    ShapeError
        `x` is not made of pairs; and as `mulmat_q8`.
    """
    name = "mulmat_q8_pair"
    require(
        x.spec.shape[-1] != WORDS or x.spec.shape[-3:-2] == (2,),
        ShapeError,
        f"{name}: x is {x.spec.shape}, needs (..., 2, groups of a row, {WORDS})",
    )
    return product(name, weight, x, None, parts=2)
