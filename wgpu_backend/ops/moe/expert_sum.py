"""The weighted sum of a token's experts, scaled, plus an addend; alone, or with their products.

Models write ``(rows * weights).sum(1)``, scale it and add a residual. Fusion rules replace these
ops by `expert_sum`, and for few tokens the second product of each expert and that sum by
`linear_by_expert_sum`. A row of its result is one long product, of the rows of all experts that a
token chose, so more lanes of a device have work than with a product for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import DeviceError, DTypeError, ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import grid_for, require, require_dtype, require_rank, vec4s
from wgpu_backend.ops.layouts.planes import binding_count
from wgpu_backend.ops.linear.gates import lies_whole
from wgpu_backend.ops.linear.q8 import GROUP
from wgpu_backend.ops.moe.experts import VECTOR_ROWS, each_expert, is_bare, linear_by_expert
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

SUM = "expert_sum"


@op(dense=("x", "weights", "addend"), trusted=True)
def expert_sum(
    x: Node,
    weights: Node | None = None,
    addend: Node | None = None,
    *,
    factor: float = 1.0,
    shape: Shape | None = None,
) -> Launch:
    """Sum the rows of a token's experts times their weights, scale the sum, and add a tensor.

    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", eq. 1.

    Parameters
    ----------
    x : (tokens, used, m)
        f32; `m` a multiple of 4.
    weights : as many values as (tokens, used), f32, or None for ones
    addend : as many values as (tokens, m), f32, or None
    factor : float
        Of the sum, not of what is added to it.
    shape : tuple of int or None
        Of the result, with as many values as (tokens, m), which it is by default.

    Returns
    -------
    (tokens, m), f32: ``(x * weights[..., None]).sum(1) * factor + addend``.

    Raises
    ------
    ShapeError
        Rows are no whole vectors of four, or operands or the shape have other numbers of values.
    """
    tokens, used, m = _sizes(x)
    for name, node, count in (("weights", weights, tokens * used), ("addend", addend, tokens * m)):
        _require_values(name, node, count)
    out = Spec.dense((tokens, m) if shape is None else shape, F32)
    require(
        out.size == tokens * m,
        ShapeError,
        f"{SUM}: the result is {shape}, needs as many values as {(tokens, m)}",
    )
    return Launch(
        out,
        {
            "x": x,
            # A binding needs a buffer even if the kernel does not read it.
            "weights": x if weights is None else weights,
            "addend": x if addend is None else addend,
        },
        threads=vec4s(out.size),
        params={"size": out.size // 4, "vec4s": m // 4, "used": used, "factor": factor},
        choices={"WEIGHTED": weights is not None, "ADDS": addend is not None},
        work=x.spec.nbytes + 2 * out.nbytes,
    )


@expert_sum.reference
def expert_sum_reference(
    x: Array,
    weights: Array | None = None,
    addend: Array | None = None,
    *,
    factor: float = 1.0,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """Sum with weights over the second axis, scale, and add another tensor."""
    each = x if weights is None else x * weights.reshape(*x.shape[:2], 1)
    y = each.sum(1) * np.float32(factor)
    y = y if addend is None else y + addend.reshape(y.shape)
    return y if shape is None else y.reshape(shape)


def _sizes(x: Node) -> tuple[int, int, int]:
    """Return the number of tokens, of experts per token, and of values of a row."""
    require_rank(SUM, "x", x, 3, 3)
    require_dtype(SUM, "x", x, (F32,))
    tokens, used, m = x.spec.shape
    require(
        m % 4 == 0 and x.spec.offset % 4 == 0,
        ShapeError,
        f"{SUM}: rows of x have {m} values, the first {x.spec.offset} values on; needs multiples "
        "of 4",
    )
    return tokens, used, m


def _require_values(name: str, node: Node | None, count: int) -> None:
    if node is None:
        return
    require_dtype(SUM, name, node, (F32,))
    require(
        node.spec.size == count and (name == "weights" or node.spec.offset % 4 == 0),
        ShapeError,
        f"{SUM}: {name} is {node.spec.shape}, {node.spec.offset} values on; needs {count} values",
    )


@expert_sum.fuses("reduce")
def fuse_weighted_rows(node: OpNode, graph: Graph) -> Node | None:
    """Fuse the sum of a token's experts with their weights, if they have any."""
    how, x = node.call.kwargs, node.operands["x"]
    whole = len(x.spec.shape) == 3 and node.spec.size == x.spec.shape[0] * x.spec.shape[2]
    if how["kind"] != "sum" or tuple(how["axes"]) != (1,) or not whole or not _fits(x):
        return None
    # A sum has several operands that are `x`.
    maker = graph.producer(x, "mul", "linear_by_expert")
    if maker is None or not graph.read_by(x.storage, node):
        return None
    weighing = _weighing(maker) if maker.op == "mul" else (x, None)
    if weighing is None or maker.spec.shape != x.spec.shape or not _fits(weighing[0]):
        return None
    # A mean is a sum with a divisor.
    factor = 1 / how["divisor"]
    return graph.call(expert_sum, *weighing, factor=factor, shape=node.spec.shape)


def _weighing(product: OpNode) -> tuple[Node, Node] | None:
    """Return the two factors of a product: the rows, and the weights with one value per row."""
    shape = product.spec.shape
    for x, weights in (("a", "b"), ("b", "a")):
        rows, each = product.operands[x], product.operands[weights]
        dense = each.spec.dtype == F32 and each.spec.is_dense
        if rows.spec.shape == shape and each.spec.shape == (*shape[:2], 1) and dense:
            return rows, each
    return None


def _fits(x: Node) -> bool:
    """Return whether rows are multiples of the kernel's vectors of four."""
    spec = x.spec
    return spec.dtype == F32 and spec.is_dense and not (spec.shape[-1] % 4 or spec.offset % 4)


@expert_sum.fuses("add")
def fuse_addend(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a sum of experts with an addend: a residual, or a shared expert."""
    # Sums commute, so the experts may be either operand.
    for own, other in (("a", "b"), ("b", "a")):
        found = graph.single_use_producer(node.operands[own], SUM)
        addend = node.operands[other]
        if found is None or found.launch.choices["ADDS"] or not _fits(addend):
            continue
        if addend.spec.shape == node.operands[own].spec.shape == node.spec.shape:
            return _again(found, graph, node, addend=addend)
    return None


@expert_sum.fuses("scale")
def fuse_scale(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a sum of experts with a scale."""
    found = graph.single_use_producer(node.operands["x"], SUM)
    # The factor applies before the addend, so a scale of both cannot be fused.
    if found is None or found.launch.choices["ADDS"] or node.call.kwargs.get("bias", 0.0) != 0.0:
        return None
    factor = found.call.kwargs["factor"] * node.call.kwargs["factor"]
    return _again(found, graph, node, factor=factor)


def _again(found: OpNode, graph: Graph, node: OpNode, **changes: Any) -> Node:  # noqa: ANN401
    """Rebuild a sum of experts in the shape of the node that it replaces."""
    weights = found.operands["weights"] if found.launch.choices["WEIGHTED"] else None
    given = {**found.call.kwargs, "shape": node.spec.shape, **changes}
    return graph.call(expert_sum, found.operands["x"], weights, **given)


PRODUCTS = "linear_by_expert_sum"
# Bindings that a weight may take, of the eight that every device has; one fewer with an addend.
BINDINGS = 4


def select_portable(launch: Launch, capabilities: Capabilities) -> Launch:
    """Size the grid by tokens and by rows of an expert.

    Raises
    ------
    DeviceError
        Experts lie in several bindings.
    """
    if not lies_whole(launch.operands["weights"]):
        raise DeviceError(f"{PRODUCTS}: experts lie in several bindings of the device, needs one")
    row_groups = -(-launch.count("m") // VECTOR_ROWS)
    return replace(
        launch,
        groups=grid_for(row_groups * launch.count("tokens")),
        params={**launch.params, "row_groups": row_groups},
        choices={**launch.choices, "ROWS": VECTOR_ROWS, "SUMS": VECTOR_ROWS},
        last_resort=not capabilities.gated_experts,
    )


@op(select=select_portable, dense=("x", "shares", "addend"), trusted=True)
def linear_by_expert_sum(
    weights: Node,
    x: Node,
    ids: Node,
    shares: Node,
    addend: Node | None = None,
    *,
    factor: float = 1.0,
    shape: Shape | None = None,
) -> Launch:
    """Multiply rows with their experts, and sum over a token's experts, each times its share.

    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", eq. 1.

    Parameters
    ----------
    weights, x, ids
        See `linear_by_expert`; `k` is a multiple of 32, and experts whose id is outside count for
        nothing.
    shares : as many values as (tokens, used), f32
        Weights of a token's experts.
    addend : as many values as (tokens, m), f32, or None
        None where weights take four bindings, as Q3_K, Q6_K, IQ2_XS, IQ2_S and IQ3_XXS do.
    factor : float
        Of the sum, not of what is added to it.
    shape : tuple of int or None
        Of the result, with as many values as (tokens, m), which it is by default.

    Returns
    -------
    (tokens, m), f32: ``sum(shares[t, u] * weights[ids[t, u]] @ x[t, u]) * factor + addend[t]``.

    Raises
    ------
    ShapeError
        As `linear_by_expert`, or shares, addend or the shape have other numbers of values.
    DTypeError
        There is no binding left for an addend, or for the weights, as of IQ3_S.
    DeviceError
        When it is run: experts lie in several bindings.
    """
    product = linear_by_expert.record(weights, x, ids)
    tokens, used, m = product.out.shape
    _require(weights, shares, addend, (tokens, used, m))
    out = Spec.dense((tokens, m) if shape is None else shape, F32)
    require(
        out.size == tokens * m,
        ShapeError,
        f"{PRODUCTS}: the result is {shape}, needs as many values as {(tokens, m)}",
    )
    operands = {name: product.operands[name] for name in ("weights", "x", "ids")}
    names = ("m", "groups", "experts", "used", "x_used", "skipped", "ids_strides")
    launch = Launch(
        out,
        {**operands, "shares": shares},
        params={name: product.params[name] for name in names}
        | {"tokens": tokens, "factor": factor, "addend_offset": 0},
        choices={"ADDS": addend is not None},
        work=product.work,
        attributes=product.attributes,
    )
    return launch if addend is None else _adding(launch, addend)


@linear_by_expert_sum.reference
def linear_by_expert_sum_reference(
    weights: Array,
    x: Array,
    ids: Array,
    shares: Array,
    addend: Array | None = None,
    *,
    factor: float = 1.0,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """Sum the products of a token's experts, each times its share."""
    return expert_sum_reference(
        each_expert(weights, x, ids), shares, addend, factor=factor, shape=shape
    )


def _require(weights: Node, shares: Node, addend: Node | None, sizes: Shape) -> None:
    """Check that rows are whole groups, and shares and addend have the sizes that they need."""
    tokens, used, m = sizes
    k = weights.spec.shape[-1]
    require(
        k % GROUP == 0,
        ShapeError,
        f"{PRODUCTS}: rows of weights have {k} values, needs a multiple of {GROUP}; use mulmat_id",
    )
    require_dtype(PRODUCTS, "shares", shares, (F32,))
    count = shares.spec.size
    require(
        count == tokens * used,
        ShapeError,
        f"{PRODUCTS}: there are {count} shares, {tokens} tokens with {used} experts each need "
        f"{tokens * used}",
    )
    dtype, most = weights.spec.dtype, BINDINGS - (addend is not None)
    require(
        has_bindings(weights, addend),
        DTypeError,
        f"{PRODUCTS}: {dtype} takes {binding_count(dtype)} bindings, needs at most {most}"
        + ("; use mulmat_id" if addend is None else " beside an addend; add it afterwards"),
    )
    if addend is None:
        return
    require_dtype(PRODUCTS, "addend", addend, (F32,))
    require(
        addend.spec.size == tokens * m,
        ShapeError,
        f"{PRODUCTS}: addend is {addend.spec.shape}, needs {tokens * m} values",
    )


def has_bindings(weights: Node, addend: Node | None) -> bool:
    """Return whether a weight leaves bindings for the other operands."""
    return binding_count(weights.spec.dtype) + (addend is not None) <= BINDINGS


def _adding(launch: Launch, addend: Node) -> Launch:
    return replace(
        launch,
        operands={**launch.operands, "addend": addend},
        params={**launch.params, "addend_offset": addend.spec.offset},
        choices={**launch.choices, "addend": "formats/load/f32"},
    )


@linear_by_expert_sum.fuses("expert_sum")
def products_in_the_sum(node: OpNode, graph: Graph) -> Node | None:
    """Fuse products of a few tokens with the sum over their experts, if nothing else reads them."""
    rows, choices = node.operands["x"], node.launch.choices
    product = graph.producer(rows, "linear_by_expert")
    if product is None or not choices["WEIGHTED"] or not is_bare(product.launch):
        return None
    weights, x, ids = product.arguments("weights", "x", "ids")
    addend = node.operands["addend"] if choices["ADDS"] else None
    # What has no addend reads its rows in that place, too.
    alone = graph.read_by(rows.storage, node) and rows.spec.shape == product.spec.shape
    if not alone or not has_bindings(weights, addend):
        return None
    shares = node.operands["weights"]
    how = {"factor": node.options["factor"], "shape": node.spec.shape}
    return graph.call(linear_by_expert_sum, weights, x, ids, shares, addend, **how)
