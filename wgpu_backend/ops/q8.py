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
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import (
    require,
    require_dtype,
    require_rank,
    require_row,
)
from wgpu_backend.ops.gates import fits_gated as fits_gated
from wgpu_backend.ops.gates import gated, require_whole
from wgpu_backend.ops.matvec import COLUMNS, as_vectors
from wgpu_backend.ops.op import op
from wgpu_backend.ops.register_tiles import grid, q8_tile
from wgpu_backend.ops.tiles import FEW

GROUP = 32  # values with a common scale
WORDS = 12  # of a group: eight of quants, its scale, two sums, and its squares
LANES_OF_A_GROUP = 8  # of `shaders/q8_groups.wgsl`
PLANES = 3  # that these may be spread over, a vector of four each
FORMATS = (
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
)  # fmt: skip
OWN = "column/own"  # how a kernel reads groups that are not planar


def fits_q8(weight: Node) -> bool:
    """Whether `mulmat_q8` takes a weight: one dense matrix in a format with an integer form."""
    spec = weight.spec
    return spec.dtype in FORMATS and spec.is_dense and len(spec.shape) == 2


def select_rounding(launch: Launch, capabilities: Capabilities) -> Launch:
    """Pick the kernel: a lane a group on a rasteriser, eight lanes on hardware."""
    if capabilities.software:
        return launch
    params = {"groups": launch.operands["x"].spec.shape[-1] // GROUP, **launch.params}
    choices = {**launch.choices, "WEIGHTED": "weight" in launch.operands}
    if "weight" not in launch.operands:
        params["weight_offset"] = 0
        choices["weight"] = "=x"  # which is compiled, and never read
    return replace(
        launch,
        shader="q8_groups",
        threads=LANES_OF_A_GROUP * launch.count("size"),
        params=params,
        choices=choices,
    )


@op(select=select_rounding, dense=("x",), trusted=True)
def q8_activations(x: Node, *, planar: bool = False) -> Launch:
    """Round groups of 32 values to eight bits each, for `mulmat_q8`.

    Parameters
    ----------
    x : (..., k), f32
        `k` a multiple of 32. A group of no magnitude above 2^-100 counts as zero; one with an
        infinity or NaN makes every product with it NaN.
    planar : bool
        Put each vector of four words of the groups into a plane of its own: hardware, whose
        neighbouring lanes take neighbouring groups, then reads what lies side by side.

    Returns
    -------
    (..., k / 32, 12), u32, or planar (3, ..., k / 32, 4)
        Of each group: 32 i8 in eight words, then as f32 the scale, the sum of the i8 times the
        scale, of all and of the first 16, and the sum of the squares of `x`. An i8 is
        ``round(value / scale)``, halves to even, and the scale a 127th of the largest magnitude.

    Raises
    ------
    ShapeError
        Rows are not whole groups.
    """
    return _rounding("q8_activations", x, planar)


@op(select=select_rounding, dense=("x", "weight"), trusted=True)
def q8_weighted(x: Node, weight: Node, *, planar: bool = False) -> Launch:
    """Round rows as `q8_activations`, times the weight of a norm; the squares are of `x` alone.

    A product that is given the norm's `eps` makes the norm of it: a factor that a whole row has
    changes nothing in how the row is rounded, so it may come later.

    Parameters
    ----------
    x : (..., k), f32
    weight : (k,), f32
    planar : bool
        See `q8_activations`.

    Returns
    -------
    (..., k / 32, 12), u32, or planar (3, ..., k / 32, 4)

    Raises
    ------
    ShapeError
        As `q8_activations`, or the weight is no such row.
    """
    launch = _rounding("q8_weighted", x, planar)
    k = x.spec.shape[-1]
    require_row("q8_weighted", "weight", weight, k)
    return replace(
        launch,
        operands={"x": x, "weight": weight},
        params={**launch.params, "groups": k // GROUP},
    )


def _rounding(name: str, x: Node, planar: bool) -> Launch:
    require_rank(name, "x", x, 1)
    require_dtype(name, "x", x, (F32,))
    k = x.spec.shape[-1]
    require(
        k % GROUP == 0,
        ShapeError,
        f"{name}: rows of x have {k} values, needs a multiple of {GROUP}",
    )
    size = x.spec.size // GROUP
    return Launch(
        rounded_spec(x.spec.shape[:-1], k // GROUP, planar),
        {"x": x},
        threads=size,
        params={"size": size},
        choices={"PLANAR": planar},
        work=2 * x.spec.nbytes,
    )


def rounded_spec(rows: Shape, groups: int, planar: bool, parts: int = 1) -> Spec:
    """Spec of rows in eight bits, or of so many side by side for each; see `q8_activations`."""
    if planar:
        return Spec.dense((PLANES, *rows, parts * groups, WORDS // PLANES), U32)
    return Spec.dense((*rows, *([parts] if parts > 1 else []), groups, WORDS), U32)


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
    return as_vectors(launch, "mulmat_q8_vec", Tile(4, FEW, 64), capabilities, squares)


def _tiles(launch: Launch, n: int, capabilities: Capabilities) -> Launch:
    weight = launch.operands["weights"].spec
    m = weight.shape[0]
    tile, choices = q8_tile(weight.dtype, m, n, launch.count("groups"), capabilities)

    def groups(rows: int) -> Groups:
        return grid(rows, n, tile)

    return replace(launch, shader="mulmat_q8", groups=groups, choices={**launch.choices, **choices})


@op(select=select_q8, dense=("x",), trusted=True)
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


@op(select=select_q8, shader="mulmat_q8", dense=("x", "addend"), trusted=True)
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


@op(select=select_q8, shader="mulmat_q8", dense=("x",), trusted=True)
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


@op(select=select_q8, shader="mulmat_q8", dense=("x",), trusted=True)
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
