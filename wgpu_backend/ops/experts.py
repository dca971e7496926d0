"""Ops of mixtures of experts: products and biases by the chosen expert, gpt-oss's activation."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import ALL, F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, four, quads, require, require_dtype, require_rank, spread
from wgpu_backend.ops.op import op
from wgpu_backend.ops.views import viewed

EXPERTS = (*FLOATS, *(d for d in ALL if d.quantised))
GROUP = 32  # weights that one load of a quant snippet brings
VECTOR_ROWS = 2
LANES, LANE_ROWS = 8, 2


def select_mulmat_id(launch: Launch, capabilities: Capabilities) -> Launch:
    """Pick lanes for a software device, and size the grid by rows of one expert."""
    if launch.shader == "mulmat_id_plain":
        return launch
    software = capabilities.software
    rows = LANES * LANE_ROWS if software else VECTOR_ROWS
    row_groups = -(-int(launch.params["m"]) // rows)  # pyright: ignore[reportArgumentType]
    return replace(
        launch,
        shader="mulmat_id_lanes" if software else "mulmat_id",
        groups=spread(row_groups * int(launch.params["pairs"])),  # pyright: ignore[reportArgumentType]
        params={**launch.params, "row_groups": row_groups},
        choices={"ROWS": LANE_ROWS if software else VECTOR_ROWS, "WG": LANES if software else 64},
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
    require_rank("mulmat_id", "weights", weights, 3, 3)
    require_rank("mulmat_id", "x", x, 3, 3)
    require_dtype("mulmat_id", "weights", weights, EXPERTS)
    require_dtype("mulmat_id", "x", x, FLOATS)
    tokens, x_used, cols = x.spec.shape
    used = _used("mulmat_id", ids, tokens)
    experts, m, k = weights.spec.shape
    require(
        cols == k,
        ShapeError,
        f"mulmat_id: rows of x have {cols} values, rows of weights have {k}",
    )
    require(
        x_used in (1, used),
        ShapeError,
        f"mulmat_id: x has {x_used} rows a token, ids has {used}, needs as many or 1",
    )
    require(
        weights.spec.is_dense and weights.spec.offset % max(k, 1) == 0,
        ShapeError,
        f"mulmat_id: weights {weights.spec.shape} have strides {weights.spec.strides}, "
        f"needs whole experts, strides {(m * k, k, 1)}",
    )
    skipped = weights.spec.offset // max(k, 1)
    params = {
        "m": m,
        "experts": experts,
        "used": used,
        "x_used": x_used,
        "skipped": skipped,
        "ids_strides": four(ids.spec.strides, 0),
    }
    # Weights are split by rows, wherever experts end: all rows from the storage's first.
    rows = viewed(weights, Spec.dense((skipped + experts * m, k), weights.spec.dtype))
    launch = Launch(
        Spec.dense((tokens, used, m), F32),
        {"weights": rows, "x": x, "ids": ids},
        work=tokens * used * m * k * 4,
    )
    if k % GROUP:
        size = tokens * used * m
        plain = {**params, "size": size, "k": k}
        return replace(launch, threads=size, params=plain, shader="mulmat_id_plain")
    return replace(launch, params={**params, "pairs": tokens * used, "groups": k // GROUP})


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
    require_rank("add_id", "x", x, 3, 3)
    require_rank("add_id", "bias", bias, 2, 2)
    require_dtype("add_id", "x", x, FLOATS)
    require_dtype("add_id", "bias", bias, FLOATS)
    tokens, used, cols = x.spec.shape
    chosen = _used("add_id", ids, tokens)
    require(
        chosen == used, ShapeError, f"add_id: ids has {chosen} experts a token, x has {used} rows"
    )
    require(
        bias.spec.shape[1] == cols,
        ShapeError,
        f"add_id: rows of bias have {bias.spec.shape[1]} values, rows of x have {cols}",
    )
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
            "ids_strides": four(ids.spec.strides, 0),
        },
        work=3 * out.nbytes,
    )


def _used(name: str, ids: Node, tokens: int) -> int:
    """Experts a token, once `ids` is what the op takes."""
    require_rank(name, "ids", ids, 2, 2)
    require_dtype(name, "ids", ids, (I32,))
    require(
        ids.spec.shape[0] == tokens,
        ShapeError,
        f"{name}: ids has {ids.spec.shape[0]} tokens, x has {tokens}",
    )
    return ids.spec.shape[1]


@op(dense=("x", "up"), trusted=True)
def silu_alpha_limit(x: Node, up: Node, alpha: float, limit: float) -> Launch:
    """Gated activation of gpt-oss: ``g sigmoid(alpha g) (u + 1)``, both bounded by `limit`.

    Source: OpenAI 2025, gpt-oss's reference implementation, ``swiglu``.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
        The gate; g is its value, at most `limit`.
    up : (...), of the same shape
        u is its value, within ``-limit … limit``.
    alpha : float
        1.702 in gpt-oss.
    limit : float
        7 in gpt-oss; more than 0.

    Returns
    -------
    Like `x`.

    Raises
    ------
    ShapeError
        Shapes differ, or `limit` is not more than 0.
    """
    require_dtype("silu_alpha_limit", "x", x, FLOATS)
    require_dtype("silu_alpha_limit", "up", up, FLOATS)
    require(
        x.spec.shape == up.spec.shape,
        ShapeError,
        f"silu_alpha_limit: x is {x.spec.shape}, up is {up.spec.shape}, needs the same shape",
    )
    require(limit > 0, ShapeError, f"silu_alpha_limit: limit is {limit}, needs more than 0")
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    return Launch(
        out,
        {"x": x, "up": up},
        threads=quads(out.size),
        params={"size": out.size, "alpha": alpha, "limit": limit},
        in_place=("x", "up"),
        work=3 * out.nbytes,
    )
