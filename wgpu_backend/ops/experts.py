"""Ops of mixtures of experts: products and biases by the chosen expert."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import F32, I32, IQ3_S
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, grid_for, pad_to_4d, require, require_dtype, require_rank
from wgpu_backend.ops.matmul import GROUP, WEIGHTS
from wgpu_backend.ops.op import op
from wgpu_backend.ops.views import viewed

# Formats that leave a binding for a bias, of the eight that every device has.
BIASED = tuple(d for d in WEIGHTS if d != IQ3_S)
VECTOR_ROWS = 2  # of an expert, that a work group takes


def select_mulmat_id(launch: Launch, capabilities: Capabilities) -> Launch:
    """Size the grid by rows of one expert."""
    if launch.shader == "mulmat_id_plain":
        return launch
    choices = {**launch.choices, "ids": "chosen/each", "ROWS": VECTOR_ROWS, "WG": 64}
    return by_rows(replace(launch, shader="mulmat_id", choices=choices), VECTOR_ROWS)


def by_rows(launch: Launch, rows: int) -> Launch:
    """Grid of a work group for every tile and every so many rows of an expert."""
    row_groups = -(-launch.count("m") // rows)
    return replace(
        launch,
        groups=grid_for(row_groups * launch.count("tiles")),
        params={**launch.params, "row_groups": row_groups},
    )


@op(select=select_mulmat_id, dense=("x",), trusted=True)
def mulmat_id(weights: Node, x: Node, ids: Node) -> Launch:
    """Multiply each row of `x` with the rows of the expert chosen for it, summing in f32.

    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", eq. 1, without the gates.

    Parameters
    ----------
    weights : (experts, m, k), any float or block format, dense
    x : (tokens, 1 or used, k), f32, f16 or bf16
        With 1 in the middle all experts of a token get the same row.
    ids : (tokens, used), i32
        Expert of each product; what an id outside ``0 … experts - 1`` gives is undefined.

    Returns
    -------
    (tokens, used, m), f32: ``weights[ids[t, u]] @ x[t, u]``.

    Raises
    ------
    ShapeError
        Row lengths or numbers of tokens differ, or `weights` is strided.
    """
    require_rank("mulmat_id", "x", x, 3, 3)
    require_dtype("mulmat_id", "x", x, FLOATS)
    require_dtype("mulmat_id", "weights", weights, WEIGHTS)
    used = used_by("mulmat_id", ids, x.spec.shape[0])
    launch = expert_product("mulmat_id", weights, x, ids, used)
    size, k = launch.out.size, x.spec.shape[2]
    if k % GROUP:
        plain = {**launch.params, "size": size, "k": k}
        return replace(launch, threads=size, params=plain, shader="mulmat_id_plain")
    return launch


@op(select=select_mulmat_id, shader="mulmat_id", dense=("x", "bias"), trusted=True)
def mulmat_id_add(weights: Node, x: Node, ids: Node, bias: Node) -> Launch:
    """Product as `mulmat_id`, with the bias of the expert added as by `add_id`.

    Parameters
    ----------
    weights, x, ids
        See `mulmat_id`; k is a multiple of 32.
    bias : (experts, m), f32, f16 or bf16

    Returns
    -------
    (tokens, used, m), f32

    Raises
    ------
    ShapeError
        As `mulmat_id`; or rows are not whole groups, or `bias` is not one of these experts.
    """
    launch = mulmat_id.record(weights, x, ids)
    k = x.spec.shape[2]
    require(
        launch.shader != "mulmat_id_plain",
        ShapeError,
        f"mulmat_id_add: rows of weights have {k} values, needs a multiple of {GROUP}; use "
        "mulmat_id and add_id",
    )
    return with_bias("mulmat_id_add", launch, bias)


def with_bias(name: str, launch: Launch, bias: Node | None) -> Launch:
    """Launch of a product by the chosen expert that ends with a bias, if there is one.

    Raises
    ------
    ShapeError
        `bias` has other experts or rows.
    DTypeError
        The format of the weights leaves no binding for a bias.
    """
    if bias is None:
        return launch
    wanted = (launch.params["experts"], launch.params["m"])
    require_dtype(name, "weights", launch.operands["weights"], BIASED)
    require_dtype(name, "bias", bias, FLOATS)
    require(
        bias.spec.shape == wanted,
        ShapeError,
        f"{name}: bias is {bias.spec.shape}, needs {wanted}",
    )
    return replace(
        launch,
        operands={**launch.operands, "bias": bias},
        params={**launch.params, "bias_offset": bias.spec.offset},
        choices={**launch.choices, "bias": f"load/{bias.spec.dtype.name}", "ADDS": True},
    )


def expert_product(name: str, weights: Node, x: Node, ids: Node, used: int) -> Launch:
    """What launches of products by the chosen expert have in common.

    Parameters
    ----------
    name : str
        Of the op.
    weights : (experts, m, k)
    x : (tokens, 1 or used, …)
        What follows may be values, or groups of them in eight bits.
    ids : (…), i32
        Experts of each token, or their tiles.
    used : int
        Experts a token.

    Raises
    ------
    ShapeError
        Row lengths differ, there are other rows a token than experts, or `weights` is strided.
    """
    require_rank(name, "weights", weights, 3, 3)
    _require_rows(name, weights, x, used)
    rows, skipped = _rows_below_each_other(name, weights)
    (tokens, x_used), (experts, m, k) = x.spec.shape[:2], weights.spec.shape
    return Launch(
        Spec.dense((tokens, used, m), F32),
        {"weights": rows, "x": x, "ids": ids},
        params={
            "m": m,
            "groups": k // GROUP,
            "experts": experts,
            "used": used,
            "x_used": x_used,
            "skipped": skipped,
            "pairs": tokens * used,
            "tiles": tokens * used,
            "ids_strides": pad_to_4d(ids.spec.strides, 0),
            "bias_offset": 0,
        },
        work=tokens * used * m * k * 4,
    )


def _require_rows(name: str, weights: Node, x: Node, used: int) -> None:
    """Rows of `x` are as long as those of the weights, and a token has one or one an expert."""
    x_used, k = x.spec.shape[1], weights.spec.shape[2]
    cols = x.spec.shape[2] * (GROUP if len(x.spec.shape) == 4 else 1)
    require(
        cols == k,
        ShapeError,
        f"{name}: rows of x have {cols} values, rows of weights have {k}",
    )
    require(
        x_used in (1, used),
        ShapeError,
        f"{name}: x has {x_used} rows a token, ids has {used}, needs as many or 1",
    )


def _rows_below_each_other(name: str, weights: Node) -> tuple[Node, int]:
    """All rows from the storage's first, and how many come before the experts.

    Weights are split by rows, wherever experts end.
    """
    experts, m, k = weights.spec.shape
    require(
        weights.spec.is_dense and weights.spec.offset % max(k, 1) == 0,
        ShapeError,
        f"{name}: weights {weights.spec.shape} have strides {weights.spec.strides}, "
        f"needs whole experts, strides {(m * k, k, 1)}",
    )
    skipped = weights.spec.offset // max(k, 1)
    spec = Spec.dense((skipped + experts * m, k), weights.spec.dtype)
    return viewed(weights, spec), skipped


@op(dense=("x", "bias"), trusted=True)
def add_id(x: Node, bias: Node, ids: Node) -> Launch:
    """Add to each row the bias of the expert that made it.

    Parameters
    ----------
    x : (tokens, used, m), f32, f16 or bf16
    bias : (experts, m), f32, f16 or bf16
    ids : (tokens, used), i32
        Expert of each row; an id outside ``0 … experts - 1`` adds nothing.

    Returns
    -------
    (tokens, used, m), f32: ``x[t, u] + bias[ids[t, u]]``.

    Raises
    ------
    ShapeError
        Row lengths, tokens or rows a token differ.
    """
    _require_biases(x, bias, ids)
    _, used, cols = x.spec.shape
    out = Spec.dense(x.spec.shape, F32)
    return Launch(
        out,
        {"x": x, "bias": bias, "ids": ids},
        threads=out.size,
        params={
            "size": out.size,
            "cols": cols,
            "used": used,
            "bias_rows": bias.spec.shape[0],
            "ids_strides": pad_to_4d(ids.spec.strides, 0),
        },
        work=3 * out.nbytes,
    )


def _require_biases(x: Node, bias: Node, ids: Node) -> None:
    require_rank("add_id", "x", x, 3, 3)
    require_rank("add_id", "bias", bias, 2, 2)
    require_dtype("add_id", "x", x, FLOATS)
    require_dtype("add_id", "bias", bias, FLOATS)
    tokens, used, cols = x.spec.shape
    chosen = used_by("add_id", ids, tokens)
    require(
        chosen == used, ShapeError, f"add_id: ids has {chosen} experts a token, x has {used} rows"
    )
    require(
        bias.spec.shape[1] == cols,
        ShapeError,
        f"add_id: rows of bias have {bias.spec.shape[1]} values, rows of x have {cols}",
    )


def used_by(name: str, ids: Node, tokens: int) -> int:
    """Experts a token, once `ids` is what the op of that name takes."""
    require_rank(name, "ids", ids, 2, 2)
    require_dtype(name, "ids", ids, (I32,))
    require(
        ids.spec.shape[0] == tokens,
        ShapeError,
        f"{name}: ids has {ids.spec.shape[0]} tokens, x has {tokens}",
    )
    return ids.spec.shape[1]
