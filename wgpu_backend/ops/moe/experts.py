"""Ops of mixtures of experts: products and biases by the selected expert."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import F16, F32, I32, IQ3_S, U32
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, grid_for, pad_to_4d, require, require_dtype, require_rank
from wgpu_backend.ops.linear.attributes import (
    VALUES,
    Attributes,
    Epilogue,
    Form,
    Precision,
    Prologue,
    get_attributes,
)
from wgpu_backend.ops.linear.f16_groups import ROW_TAIL, f16_row_values
from wgpu_backend.ops.linear.gates import join_halves, joined_rows, require_whole
from wgpu_backend.ops.linear.linear import WEIGHTS, WEIGHTS_OF
from wgpu_backend.ops.linear.q8 import GROUP, ROW, WORDS
from wgpu_backend.ops.linear.q8_rounding import q8_values
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array, get_reference
from wgpu_backend.ops.shape.views import make_view

# Formats that leave a binding for a bias, of the eight that every device has.
BIASED = tuple(d for d in WEIGHTS if d != IQ3_S)
# Rows of an expert that a work group takes.
VECTOR_ROWS = 2
NAME, PLAIN = "linear_by_expert", "ops/moe/linear_by_expert_plain"
# Pairs of a token and a choice, one by one or in tiles.
EACH, TILES = "lib/experts/each_pair", "lib/experts/tiles"


def select_portable(launch: Launch, capabilities: Capabilities) -> Launch:
    """Size the grid of the portable kernel, by pairs or tiles of them and by rows of one expert.

    Raises
    ------
    DeviceError
        Gates and projections lie in several bindings, or x is in `f16_rows`.
    """
    if launch.shader == PLAIN:
        return launch
    require(
        get_attributes(launch).prologue.form != "f16_rows",
        DeviceError,
        f"{NAME}: the device has no kernel for x in f16_rows; needs matrix units and pairs in "
        "tiles, or the values as they are",
    )
    require_whole(launch)
    joins = joined_rows(launch)
    # Rules join gate and projection only where one kernel for both is faster.
    launch = replace(launch, last_resort=joins > 1 and not capabilities.gated_experts)
    sizes = {"ROWS": VECTOR_ROWS, "SOURCES": VECTOR_ROWS * joins, "WG": 64}
    rounded = get_attributes(launch).prologue.in_bytes
    form = {"x": "lib/q8/q8_load4", "X_GROUP": WORDS} if rounded else {}
    choices = {**launch.choices, **form, **sizes, "COLS": pairs_per_tile(launch)}
    return by_rows(replace(launch, choices=choices), VECTOR_ROWS)


def by_rows(launch: Launch, rows: int) -> Launch:
    """Return the grid of one work group per tile and per `rows` rows of an expert."""
    row_groups = -(-launch.count("m") // rows)
    return replace(
        launch,
        groups=grid_for(row_groups * launch.count("tiles")),
        params={**launch.params, "row_groups": row_groups},
    )


def in_tiles(launch: Launch) -> bool:
    """Return whether the pairs (token, choice) come in tiles of one expert."""
    return launch.choices.get("ids") == TILES


def is_gated(launch: Launch) -> bool:
    """Return whether a gate and a projection are joined."""
    return get_attributes(launch).epilogue.activation is not None


def is_bare(launch: Launch) -> bool:
    """Return whether a product is by pairs, in f32, without a bias or gate."""
    more = is_plain(launch) or in_tiles(launch) or is_gated(launch) or "bias" in launch.operands
    return not more and get_attributes(launch).prologue == VALUES


def pairs_per_tile(launch: Launch) -> int:
    """Return how many (token, expert) pairs one tile multiplies."""
    return launch.operands["ids"].spec.shape[1] - 1 if in_tiles(launch) else 1


@op(select=select_portable, dense=("x", "bias"), trusted=True)
def linear_by_expert(
    weights: Node,
    x: Node,
    ids: Node,
    bias: Node | None = None,
    *,
    used: int | None = None,
    prologue: Prologue = VALUES,
    activation: str | None = None,
    precision: Precision = "default",
) -> Launch:
    """Multiply each row of `x` with the rows of its expert, summing in f32.

    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", eq. 1, without the gates.

    Parameters
    ----------
    weights : (experts, m, k), any float or block format, dense
        Of a format of `q8.FORMATS`, where rows of `x` are rounded. With an activation
        (experts, 2 m, k), where each expert's gate is above its projection, or (2, experts, m, k),
        where all gates are; in one binding of the device then, see `fits_gated`.
    x : (tokens, 1 or used, k), f32, f16 or bf16
        With 1 in the middle all experts of a token get the same row. In eight bits
        (tokens, 1 or used, k / 32, 12), u32, from `q8_activations`; by whole rows
        (tokens, 1 or used, k + 8), f16, from `f16_rows`.
    ids : (tokens, used), i32
        Expert of each product; what an id outside ``0 … experts - 1`` gives is undefined. With
        `used` the pairs in tiles: (n, 1 + size), from `expert_tiles`; rows of pairs that are in no
        tile are left as they are.
    bias : (experts, m), f32, f16 or bf16, or None
        Added to the rows of each expert; k is a multiple of 32 then, as with tiles.
    used : int or None
        Experts a token, where `ids` are tiles.
    activation : str or None
        See `Epilogue`; k is a multiple of 32 then, and there are neither tiles nor a bias.
    precision : str
        See `Attributes`. Only kernels for tiles have sums in f16.

    Returns
    -------
    (tokens, used, m), f32: ``weights[ids[t, u]] @ x[t, u] + bias[ids[t, u]]``; or the activation of
    what the gate gives times what the projection does.

    Raises
    ------
    ShapeError
        Row lengths or numbers of tokens differ, `weights` is strided, there are not as many tiles
        as the pairs may need, or `bias` is not one of these experts.
    DTypeError
        A weight has no integer form, or leaves no binding for a bias; or an operand another type.
    DeviceError
        When it is run: gates and projections lie in several bindings.
    """
    form = prologue.form
    _require_types(weights, x, form)
    each = used_by(NAME, ids, x.spec.shape[0]) if used is None else used
    launch = _product(weights, x, ids, each, ROW_TAIL if form == "f16_rows" else 0)
    launch = replace(launch, work=launch.work // (1 if form == "values" else 2))
    snippets = {"ids": EACH, "x": ROW} if prologue.in_bytes else {"ids": EACH}
    attributes = Attributes(prologue, Epilogue(), precision)
    launch = replace(launch, choices=snippets, attributes=attributes)
    if activation is not None:
        return _with_gate(launch, weights, activation, plain=used is None and bias is None)
    if used is not None:
        launch = _use_tiles(launch)
    if bias is not None:
        return _with_bias(launch, bias)
    return launch if _in_groups(launch) else _plain(launch)


@linear_by_expert.reference
def linear_by_expert_reference(
    weights: Array,
    x: Array,
    ids: Array,
    bias: Array | None = None,
    *,
    used: int | None = None,
    prologue: Prologue = VALUES,
    activation: str | None = None,
    precision: Precision = "default",
) -> Array:
    """Multiply each row with its expert, exactly for any precision; zeros for an id outside."""
    rows = q8_values(x) if prologue.in_bytes else x
    rows = f16_row_values(x) if prologue.form == "f16_rows" else rows
    if activation is not None:
        # Two stacks of matrices, or gates above projections in one.
        gates, ups = weights if weights.ndim == 4 else np.split(weights, 2, axis=1)
        return get_reference(activation)(each_expert(gates, rows, ids)) * each_expert(
            ups, rows, ids
        )
    if used is not None:
        return _by_tiles(weights, rows, ids, bias, used)
    y = each_expert(weights, rows, ids)
    return y if bias is None else add_id_reference(y, bias, ids)


def mulmat_id(weights: Node, x: Node, ids: Node) -> Node:
    """Multiply each row of `x` with the rows of its expert, summing in f32.

    Parameters
    ----------
    weights : (experts, m, k)
        Any float or block format, dense.
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
    return linear_by_expert(weights, x, ids)


def _require_types(weights: Node, x: Node, form: Form) -> None:
    rank = 3 if form in ("values", "f16_rows") else 4
    require_rank(NAME, "x", x, rank, rank)
    types = FLOATS if form == "values" else (F16,) if form == "f16_rows" else (U32,)
    require_dtype(NAME, "x", x, types)
    require_dtype(NAME, "weights", weights, WEIGHTS_OF[form])
    require(
        rank == 3 or x.spec.shape[3] == WORDS,
        ShapeError,
        f"{NAME}: groups of x have {x.spec.shape[-1]} words, needs {WORDS}",
    )


def _in_groups(launch: Launch) -> bool:
    """Return whether rows of the weights are whole groups of 32."""
    return launch.operands["weights"].spec.shape[-1] % GROUP == 0


def is_plain(launch: Launch) -> bool:
    """Return whether rows may have any length, which needs a separate kernel."""
    return launch.shader == PLAIN


def _plain(launch: Launch) -> Launch:
    size, k = launch.out.size, launch.operands["weights"].spec.shape[-1]
    params = {**launch.params, "size": size, "k": k}
    return replace(launch, threads=size, params=params, shader=PLAIN, choices={})


def _use_tiles(launch: Launch) -> Launch:
    """Return the launch for ids that are grouped into tiles by expert."""
    tiles, k = launch.operands["ids"].spec, launch.operands["weights"].spec.shape[-1]
    pairs, experts = launch.count("pairs"), launch.count("experts")
    require_dtype(NAME, "tiles", launch.operands["ids"], (I32,))
    _require_groups(k)
    size = tiles.shape[-1] - 1
    require(
        len(tiles.shape) == 2 and size > 0 and tiles.shape[0] == count_tiles(pairs, experts, size),
        ShapeError,
        f"{NAME}: tiles is {tiles.shape}, {pairs} pairs of {experts} experts need "
        f"({pairs} // size + {experts}, 1 + size)",
    )
    choices = {**launch.choices, "ids": TILES}
    return replace(launch, params={**launch.params, "tiles": tiles.shape[0]}, choices=choices)


def count_tiles(pairs: int, experts: int, size: int) -> int:
    """Return how many tiles the pairs need at most, for any choice of experts."""
    # Each expert may leave one tile partly empty. Tiles without pairs return at once.
    return pairs // size + experts


def _require_groups(k: int) -> None:
    require(
        k % GROUP == 0,
        ShapeError,
        f"{NAME}: rows of weights have {k} values, with tiles or a bias it needs a multiple of "
        f"{GROUP}; use mulmat_id and add_id",
    )


def _with_bias(launch: Launch, bias: Node) -> Launch:
    """Return a launch that adds a bias to the product."""
    wanted = (launch.params["experts"], launch.params["m"])
    _require_groups(launch.operands["weights"].spec.shape[-1])
    require_dtype(NAME, "weights", launch.operands["weights"], BIASED)
    require_dtype(NAME, "bias", bias, FLOATS)
    require(
        bias.spec.shape == wanted,
        ShapeError,
        f"{NAME}: bias is {bias.spec.shape}, needs {wanted}",
    )
    return replace(
        launch,
        operands={**launch.operands, "bias": bias},
        params={**launch.params, "bias_offset": bias.spec.offset},
        choices={**launch.choices, "bias": f"formats/load/{bias.spec.dtype.name}", "ADDS": True},
    )


def _with_gate(launch: Launch, weights: Node, activation: str, *, plain: bool) -> Launch:
    """Return a launch of gates and projections, joined by an activation."""
    *lead, experts, m, k = weights.spec.shape
    _require_groups(k)
    require(
        plain and tuple(lead) in ((), (2,)),
        ShapeError,
        f"{NAME}: a gate with weights of {weights.spec.shape}, needs (experts, 2 m, k) or "
        "(2, experts, m, k), and neither tiles nor a bias",
    )
    # As if the rows of both matrices were those of one expert.
    rows = 2 * m if lead else m
    launch = replace(launch, out=Spec.dense((*launch.out.shape[:-1], rows), F32))
    launch = join_halves(NAME, launch, activation)
    found = get_attributes(launch)
    return replace(
        launch,
        params={**launch.params, "each": m, "apart": experts * m if lead else m // 2},
        attributes=replace(found, epilogue=Epilogue(activation)),
    )


def _product(weights: Node, x: Node, ids: Node, used: int, tail: int) -> Launch:
    """Return the launch of the products, without bias or gate; rows of x may have a tail."""
    require_rank(NAME, "weights", weights, 3, 4)
    _require_rows(NAME, weights, x, used, tail)
    rows, skipped = _flatten_experts(NAME, weights)
    (tokens, x_used), (experts, m, k) = x.spec.shape[:2], weights.spec.shape[-3:]
    return Launch(
        Spec.dense((tokens, used, m), F32),
        {"weights": rows, "x": x, "ids": ids},
        params={
            "m": m,
            "each": m,
            "apart": 0,
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


def _require_rows(name: str, weights: Node, x: Node, used: int, tail: int) -> None:
    """Check that rows of `x` are as long as the weights', one per token or per pair."""
    x_used, k = x.spec.shape[1], weights.spec.shape[-1]
    cols = x.spec.shape[2] * (GROUP if len(x.spec.shape) == 4 else 1)
    needs = f"; needs x of {k + tail}, from f16_rows" if tail else ""
    require(
        cols == k + tail,
        ShapeError,
        f"{name}: rows of x have {cols} values, rows of weights have {k}{needs}",
    )
    require(
        x_used in (1, used),
        ShapeError,
        f"{name}: x has {x_used} rows a token, ids has {used}, needs as many or 1",
    )


def _flatten_experts(name: str, weights: Node) -> tuple[Node, int]:
    """Return all rows of the storage as one matrix, and how many precede the experts.

    Weights are split by rows, wherever experts end.
    """
    *lead, m, k = weights.spec.shape
    experts = math.prod(lead)
    require(
        weights.spec.is_dense and weights.spec.offset % max(k, 1) == 0,
        ShapeError,
        f"{name}: weights {weights.spec.shape} have strides {weights.spec.strides}, "
        f"needs whole experts, strides {(m * k, k, 1)}",
    )
    skipped = weights.spec.offset // max(k, 1)
    # From the first row of the storage: a weight in parts is bound from there.
    spec = Spec.dense((skipped + experts * m, k), weights.spec.dtype)
    return make_view(weights, spec), skipped


@op(dense=("x", "bias"), trusted=True)
def add_id(x: Node, bias: Node, ids: Node) -> Launch:
    """Add to each row the bias of its expert.

    Parameters
    ----------
    x : (tokens, used, m)
        f32, f16 or bf16.
    bias : (experts, m)
        f32, f16 or bf16.
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


@add_id.reference
def add_id_reference(x: Array, bias: Array, ids: Array) -> Array:
    """Add to each row the bias of its expert; ids outside add nothing."""
    inside = (ids >= 0) & (ids < len(bias))
    return x + np.where(inside[..., None], bias[np.where(inside, ids, 0)], np.float32(0))


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
    """Check the ids of an op, and return the number of experts per token."""
    require_rank(name, "ids", ids, 2, 2)
    require_dtype(name, "ids", ids, (I32,))
    require(
        ids.spec.shape[0] == tokens,
        ShapeError,
        f"{name}: ids has {ids.spec.shape[0]} tokens, x has {tokens}",
    )
    return ids.spec.shape[1]


def each_expert(weights: Array, x: Array, ids: Array) -> Array:
    """Return the products of each token with its experts, (tokens, used, rows)."""
    tokens, used = ids.shape
    rows = np.broadcast_to(x, (tokens, used, x.shape[-1]))
    # An id outside chooses no expert and leaves zeros.
    y = np.zeros((tokens, used, weights.shape[1]), np.float32)
    for expert, matrix in enumerate(weights):
        chosen = ids == expert
        y[chosen] = rows[chosen] @ matrix.T
    return y


def _by_tiles(weights: Array, x: Array, tiles: Array, bias: Array | None, used: int) -> Array:
    """Multiply each pair in a tile with the tile's expert."""
    rows = np.broadcast_to(x, (len(x), used, x.shape[-1])).reshape(-1, x.shape[-1])
    y = np.zeros((len(rows), weights.shape[1]), np.float32)
    for expert, *pairs in tiles[tiles[:, 0] >= 0]:
        # -1 fills up a tile.
        some = [pair for pair in pairs if pair >= 0]
        y[some] = rows[some] @ weights[expert].T + (0 if bias is None else bias[expert])
    return y.reshape(len(x), used, -1)
