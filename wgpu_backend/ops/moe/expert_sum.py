"""One op for the weighted sum of a token's experts, scaled, plus an addend.

Models write ``(rows * weights).sum(1)``, scale it and add a residual. Fusion rules replace these
ops by `expert_sum`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import require, require_dtype, require_rank, vec4s
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

NAME = "expert_sum"


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
        f"{NAME}: the result is {shape}, needs as many values as {(tokens, m)}",
    )
    return Launch(
        out,
        {
            "x": x,
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
    require_rank(NAME, "x", x, 3, 3)
    require_dtype(NAME, "x", x, (F32,))
    tokens, used, m = x.spec.shape
    require(
        m % 4 == 0 and x.spec.offset % 4 == 0,
        ShapeError,
        f"{NAME}: rows of x have {m} values, the first {x.spec.offset} values on; needs multiples "
        "of 4",
    )
    return tokens, used, m


def _require_values(name: str, node: Node | None, count: int) -> None:
    if node is None:
        return
    require_dtype(NAME, name, node, (F32,))
    require(
        node.spec.size == count and (name == "weights" or node.spec.offset % 4 == 0),
        ShapeError,
        f"{NAME}: {name} is {node.spec.shape}, {node.spec.offset} values on; needs {count} values",
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
    factor = 1 / how["divisor"]
    return graph.call(expert_sum, *weighing, factor=factor, shape=node.spec.shape)


def _weighing(product: OpNode) -> tuple[Node, Node] | None:
    """Return the factor that has all values, and the one that has one value a row."""
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
    for own, other in (("a", "b"), ("b", "a")):
        found = graph.single_use_producer(node.operands[own], NAME)
        addend = node.operands[other]
        if found is None or found.launch.choices["ADDS"] or not _fits(addend):
            continue
        if addend.spec.shape == node.operands[own].spec.shape == node.spec.shape:
            return _again(found, graph, node, addend=addend)
    return None


@expert_sum.fuses("scale")
def fuse_scale(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a sum of experts with a scale."""
    found = graph.single_use_producer(node.operands["x"], NAME)
    if found is None or found.launch.choices["ADDS"] or node.call.kwargs.get("bias", 0.0) != 0.0:
        return None
    factor = found.call.kwargs["factor"] * node.call.kwargs["factor"]
    return _again(found, graph, node, factor=factor)


def _again(found: OpNode, graph: Graph, node: OpNode, **changes: Any) -> Node:  # noqa: ANN401
    """Rebuild a sum of experts in the shape of the node that it replaces."""
    weights = found.operands["weights"] if found.launch.choices["WEIGHTED"] else None
    given = {**found.call.kwargs, "shape": node.spec.shape, **changes}
    return graph.call(expert_sum, found.operands["x"], weights, **given)
