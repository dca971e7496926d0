"""One op for the second product of a token's experts and the sum over them.

A row of the result is then one long product, of the rows of all experts that a token chose, so more
lanes of a device have work than with a product for each.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import DeviceError, DTypeError, ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import grid_for, require, require_dtype
from wgpu_backend.ops.layouts.planes import binding_count
from wgpu_backend.ops.linear.gates import lies_whole
from wgpu_backend.ops.linear.q8 import GROUP
from wgpu_backend.ops.moe.expert_sum import expert_sum_reference
from wgpu_backend.ops.moe.experts import VECTOR_ROWS, each_expert, is_bare, linear_by_expert
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

NAME = "linear_by_expert_sum"
BINDINGS = 4  # that a weight may take, of the eight that every device has; one less with an addend


def select_portable(launch: Launch, capabilities: Capabilities) -> Launch:
    """Size the grid by tokens and by rows of an expert.

    Raises
    ------
    DeviceError
        Experts lie in several bindings.
    """
    if not lies_whole(launch.operands["weights"]):
        raise DeviceError(f"{NAME}: experts lie in several bindings of the device, needs one")
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
        f"{NAME}: the result is {shape}, needs as many values as {(tokens, m)}",
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
        f"{NAME}: rows of weights have {k} values, needs a multiple of {GROUP}; use mulmat_id",
    )
    require_dtype(NAME, "shares", shares, (F32,))
    count = shares.spec.size
    require(
        count == tokens * used,
        ShapeError,
        f"{NAME}: there are {count} shares, {tokens} tokens with {used} experts each need "
        f"{tokens * used}",
    )
    dtype, most = weights.spec.dtype, BINDINGS - (addend is not None)
    require(
        has_bindings(weights, addend),
        DTypeError,
        f"{NAME}: {dtype} takes {binding_count(dtype)} bindings, needs at most {most}"
        + ("; use mulmat_id" if addend is None else " beside an addend; add it afterwards"),
    )
    if addend is None:
        return
    require_dtype(NAME, "addend", addend, (F32,))
    require(
        addend.spec.size == tokens * m,
        ShapeError,
        f"{NAME}: addend is {addend.spec.shape}, needs {tokens * m} values",
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
