"""Matrix products: mulmat, whose first operand is a weight in any format."""

from __future__ import annotations

import math
from dataclasses import replace

from wgpu_backend.device_info import Capabilities, Tile
from wgpu_backend.dtypes import ALL, F32
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Groups, Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import (
    FLOATS,
    pad_to_4d,
    require,
    require_dtype,
    require_rank,
    require_tensor,
)
from wgpu_backend.ops.elementwise import add
from wgpu_backend.ops.gates import gated, require_whole
from wgpu_backend.ops.matvec import COLUMNS, as_vectors
from wgpu_backend.ops.normed import GROUP, square_count
from wgpu_backend.ops.op import op
from wgpu_backend.ops.q8 import FORMATS
from wgpu_backend.ops.register_tiles import f32_tile, grid
from wgpu_backend.ops.tiles import FEW

TILED = "kernels/gpu/matmul_tiled"
WEIGHTS = tuple(d for d in ALL if d in FLOATS or d.quantised)


def select_mulmat(launch: Launch, capabilities: Capabilities) -> Launch:
    """Pick the kernel of a product with weights: vector or tiles.

    Raises
    ------
    DeviceError
        The product is to make a norm, for which the device has no kernel; or it joins rows of a
        weight that lies in several bindings.
    """
    if launch.shader == "matmul":
        return launch
    if "NORMED" in launch.choices:
        raise DeviceError(
            "product that makes a norm: the device has no kernel for it; use rms_norm, and the "
            "product without eps"
        )
    require_whole(launch)
    n = launch.count("n")
    few = 0 < n <= COLUMNS
    return _vector(launch, n, capabilities) if few else _tiles(launch, n, capabilities)


def _vector(launch: Launch, n: int, capabilities: Capabilities) -> Launch:
    """Few columns: how a lane multiplies its share of a row hangs on the format."""
    dtype = launch.operands["weights"].spec.dtype
    # Unpacked weights of all rows stay in registers while several columns take their turns.
    rows = 4 if n == 1 else 2
    if dtype in FLOATS:
        snippets = {"share": "kernels/gpu/share/floats", "weights": f"vectors/{dtype}"}
        rows *= 2
    elif dtype in FORMATS:
        snippets = {"share": "kernels/gpu/share/integers", "weights": f"int8/{dtype}"}
    else:
        snippets = {"share": "kernels/gpu/share/values", "weights": f"quant/{dtype}"}
    launch = replace(launch, choices={**launch.choices, **snippets})
    return as_vectors(launch, "matvec", Tile(rows, FEW, 64), capabilities)


def _tiles(launch: Launch, n: int, capabilities: Capabilities) -> Launch:
    tile, choices = f32_tile(launch.operands["weights"].spec.shape[0], n, capabilities)

    def groups(rows: int) -> Groups:
        return grid(rows, n, tile)

    return replace(launch, shader=TILED, groups=groups, choices={**launch.choices, **choices})


@op(select=select_mulmat, shader=TILED, dense=("x",), trusted=True)
def mulmat(weight: Node, x: Node, *, eps: float | None = None) -> Launch:
    """Multiply rows of `x` with rows of `weight`, summing in f32.

    Parameters
    ----------
    weight : (..., m, k), any float or block format
        Leading axes divide those of `x`: one batch of weights serves several of `x`, as one head of
        keys serves several of queries.
    x : (..., n, k), f32, f16 or bf16
    eps : float or None
        Divide by the root of the mean square plus this: a norm of rows from `norm_weighted`, which
        are ``k + squares`` long. The weight is one dense matrix, its `k` a multiple of 32.

    Returns
    -------
    (..., n, m), f32: ``x @ weight.T``.

    Raises
    ------
    ShapeError
        Row lengths differ, or leading axes do not divide; or the weight is not one for a norm.
    DeviceError
        When it is run: the device has no kernel that makes a norm.
    """
    require_rank("mulmat", "weight", weight, 2)
    require_rank("mulmat", "x", x, 1)
    require_dtype("mulmat", "weight", weight, WEIGHTS)
    require_dtype("mulmat", "x", x, FLOATS)
    m, k = weight.spec.shape[-2:]
    _require_rows(x, k, eps)
    if _blockwise(weight, x):
        return _norm(_by_groups(weight, x, m, k), eps)
    require(
        eps is None,
        ShapeError,
        f"mulmat: weight is {weight.spec.shape}, to make a norm it needs one dense matrix with "
        f"whole groups of {GROUP}; use rms_norm, and mulmat without eps",
    )
    return _plain(weight, x, m, k)


@op(select=select_mulmat, shader=TILED, dense=("x",), trusted=True)
def mulmat_full_prec(weight: Node, x: Node, *, eps: float | None = None) -> Launch:
    """Product as `mulmat`, for results that must be precise where others may be rounded: logits.

    Parameters
    ----------
    weight, x, eps
        See `mulmat`.

    Returns
    -------
    (..., n, m), f32
    """
    return mulmat.record(weight, x, eps=eps)


def _require_rows(x: Node, k: int, eps: float | None) -> None:
    squares = 0 if eps is None else square_count(k)
    behind = f" and {squares} squares of a norm" if squares else ""
    require(
        x.spec.shape[-1] == k + squares,
        ShapeError,
        f"mulmat: rows of x have {x.spec.shape[-1]} values, rows of weight have {k}{behind}",
    )


def _blockwise(weight: Node, x: Node) -> bool:
    """Whether the fast kernels fit: one dense matrix of weights, whole groups of 32."""
    spec = weight.spec
    dense = spec.is_dense and len(spec.shape) == 2 and spec.offset % GROUP == 0
    return spec.dtype.quantised or (dense and spec.shape[-1] % GROUP == 0 and x.spec.dtype == F32)


def _by_groups(weight: Node, x: Node, m: int, k: int) -> Launch:
    require(
        weight.spec.is_dense and len(weight.spec.shape) == 2,
        ShapeError,
        f"mulmat: a {weight.spec.dtype} weight is {weight.spec.shape}, needs one dense matrix",
    )
    require_dtype("mulmat", "x", x, (F32,))
    n = math.prod(x.spec.shape[:-1])
    return Launch(
        Spec.dense((*x.spec.shape[:-1], m), F32),
        {"weights": weight, "x": x, "addend": x},
        params={
            "m": m,
            "n": n,
            "groups": k // GROUP,
            "addend_stride": 0,
            "scale_offset": 0,
            "eps": 0.0,
        },
        work=weight.spec.nbytes + 2 * m * n * k,
    )


def _norm(launch: Launch, eps: float | None) -> Launch:
    """Launch of a product, with the factor of a norm, if one is wanted."""
    if eps is None:
        return launch
    params = {**launch.params, "eps": eps}
    return replace(launch, params=params, choices={**launch.choices, "NORMED": True})


def _plain(weight: Node, x: Node, m: int, k: int) -> Launch:
    shape = x.spec.shape if len(x.spec.shape) > 1 else (1, *x.spec.shape)
    n = shape[-2]
    batch, repeats = _batches(weight.spec.shape[:-2], shape[:-2])
    out = Spec.dense((*x.spec.shape[:-1], m), F32)
    return Launch(
        out,
        {"a": weight, "x": x},
        threads=out.size,
        params={
            "size": out.size,
            "m": m,
            "n": n,
            "k": k,
            "batch": pad_to_4d((*batch, 1, 1), 1),
            "repeats": pad_to_4d((*repeats, 1, 1), 1),
            "a_strides": pad_to_4d(weight.spec.strides, 0),
            "x_strides": pad_to_4d(x.spec.strides, 0),
        },
        shader="matmul",
        work=2 * out.size * k,
    )


def _batches(a: Shape, x: Shape) -> tuple[Shape, Shape]:
    """Batch extents of x, and how often each batch of a repeats in it."""
    wide = (1,) * (2 - len(a)) + a, (1,) * (2 - len(x)) + x
    for have, want in zip(*wide, strict=True):
        require(
            have > 0 and want % have == 0,
            ShapeError,
            f"mulmat: weight has batch axes {a}, which do not divide those of x, {x}",
        )
    return wide[1], tuple(w // h for h, w in zip(*wide, strict=True))


@op(select=select_mulmat, shader=TILED, dense=("x", "addend"), trusted=True)
def mulmat_add(weight: Node, x: Node, addend: Node, *, eps: float | None = None) -> Launch:
    """Product with weights and a sum in one: ``x @ weight.T + addend``.

    Parameters
    ----------
    weight : (m, k), dense, any float or block format; k a multiple of 32
    x : (..., n, k), f32
    addend : (m,) or (..., n, m), f32
        A bias, or a residual.
    eps : float or None
        See `mulmat`.

    Returns
    -------
    (..., n, m), f32.

    Raises
    ------
    ShapeError
        `addend` is neither a row nor like the result, or the weight is not one for whole groups.
    DeviceError
        As `mulmat`.
    """
    launch = mulmat.record(weight, x, eps=eps)
    m, shape = launch.out.shape[-1], addend.spec.shape
    require(
        launch.shader != "matmul",
        ShapeError,
        f"mulmat_add: weight is {weight.spec.shape}, needs one dense matrix with whole groups of "
        f"{GROUP}; use mulmat and add",
    )
    require(
        shape in ((m,), launch.out.shape),
        ShapeError,
        f"mulmat_add: addend is {shape}, needs {(m,)} or {launch.out.shape}",
    )
    require_dtype("mulmat_add", "addend", addend, (F32,))
    return replace(
        launch,
        operands={**launch.operands, "addend": addend},
        params={**launch.params, "addend_stride": 0 if shape == (m,) else m},
        choices={**launch.choices, "ADDS": True},
    )


@op(select=select_mulmat, shader=TILED, dense=("x",), trusted=True)
def mulmat_gated(weight: Node, x: Node, *, activation: str, eps: float | None = None) -> Launch:
    """Join two products: ``act(gate) * up``, the gate being the first half of the rows of a weight.

    Parameters
    ----------
    weight : (2 m, k), dense, any float or block format; k a multiple of 32
        Rows lie in one binding of the device, see `fits_gated`.
    x : (..., n, k), f32
    activation : str
        silu, gelu, gelu_erf, quick_gelu or relu.
    eps : float or None
        See `mulmat`.

    Returns
    -------
    (..., n, m), f32

    Raises
    ------
    ShapeError
        The weight has no halves or is not one for whole groups, or there is no such activation.
    DeviceError
        When it is run: the weight lies in several bindings; and as `mulmat`.
    """
    launch = mulmat.record(weight, x, eps=eps)
    require(
        launch.shader != "matmul",
        ShapeError,
        f"mulmat_gated: weight is {weight.spec.shape}, needs one dense matrix with whole groups of "
        f"{GROUP}; use mulmat and a gated activation",
    )
    return gated("mulmat_gated", launch, activation)


@mulmat_add.fuses("add")
def sum_in_the_product(node: OpNode, graph: Graph) -> Node | None:
    """A product and a bias, or a residual, that are added to nothing else."""
    for product, addend in (("a", "b"), ("b", "a")):
        found, other = (
            graph.single_use_producer(node.operands[product], "mulmat"),
            node.operands[addend],
        )
        if found is None or "weights" not in found.operands or other.spec.dtype != F32:
            continue
        if other.spec.shape in (found.spec.shape, found.spec.shape[-1:]):
            return graph.call(mulmat_add, *found.call.args, addend=other, **found.call.kwargs)
    return None


def linear(weight: Node, x: Node, addend: Node | None) -> Node:
    """``x @ weight.T + addend``, in one op where the weight allows that.

    Parameters
    ----------
    weight, x
        See `mulmat`.
    addend : (m,) or (..., n, m), or None
    """
    if addend is None:
        return mulmat(weight, x)
    for name, node in (("x", x), ("addend", addend)):
        require_tensor("linear", name, node)
    rows = weight.spec.shape[-2:-1]  # empty where `mulmat` will say what is wrong
    fits = addend.spec.shape in (rows, (*x.spec.shape[:-1], *rows))
    if fits and addend.spec.dtype == F32 and _blockwise(weight, x):
        return mulmat_add(weight, x, addend)
    return add(mulmat(weight, x), addend)
