"""Where activations are rounded to eight bits: rules for products, and the norm before them.

The rules apply where the caller allows rounding (``exact=False``) and the device is the faster for
it: today a rasteriser on the CPU, which is bound by loads and has eight-bit products.
"""

from __future__ import annotations

from wgpu_backend.dtypes import F32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import require, require_dtype, require_rank, row_count, spread
from wgpu_backend.ops.op import op
from wgpu_backend.ops.q8 import (
    GROUP,
    WORDS,
    fits_gated,
    fits_q8,
    mulmat_q8,
    mulmat_q8_add,
    mulmat_q8_gated,
    q8_activations,
)

# Gated activations and the one they apply to the gate.
GATED = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_erf": "gelu_erf",
    "geglu_quick": "quick_gelu",
    "reglu": "relu",
}


@op(dense=("x",), trusted=True)
def rms_norm_q8(x: Node, weight: Node | None = None, *, eps: float) -> Launch:
    """`rms_norm` whose result leaves in eight bits, as `q8_activations` gives it.

    Parameters
    ----------
    x : (..., cols), f32; `cols` a multiple of 32
    weight : (cols,), f32, or None
    eps : float
        Added to the mean square.

    Returns
    -------
    (..., cols / 32, 12), u32
    """
    require_rank("rms_norm_q8", "x", x, 1)
    require_dtype("rms_norm_q8", "x", x, (F32,))
    cols = x.spec.shape[-1]
    require(
        cols % GROUP == 0,
        ShapeError,
        f"rms_norm_q8: rows of x have {cols} values, needs a multiple of {GROUP}",
    )
    if weight is not None:
        require_dtype("rms_norm_q8", "weight", weight, (F32,))
        require(
            weight.spec.shape == (cols,) and weight.spec.is_dense,
            ShapeError,
            f"rms_norm_q8: weight is {weight.spec.shape}, rows of x have {cols} values",
        )
    rows = row_count(x.spec)
    return Launch(
        Spec.dense((*x.spec.shape[:-1], cols // GROUP, WORDS), U32),
        {"x": x, "weight": x if weight is None else weight},
        groups=spread(rows),
        params={"rows": rows, "groups": cols // GROUP, "eps": eps},
        choices={"WEIGHTED": weight is not None},
        work=2 * x.spec.nbytes,
    )


@mulmat_q8.fuses("mulmat", exact=False)
def product(node: Node, graph: Graph) -> Node | None:
    """A product of a weight that has an integer form."""
    operands = _roundable(node, graph)
    return operands and graph.call(mulmat_q8, operands[0], operands[1])


@mulmat_q8_add.fuses("mulmat_add", exact=False)
def product_and_sum(node: Node, graph: Graph) -> Node | None:
    """The same, with a bias or a residual."""
    operands = _roundable(node, graph)
    if operands is None or node.launch is None:
        return None
    return graph.call(mulmat_q8_add, *operands, node.launch.operands["addend"])


def _roundable(node: Node, graph: Graph) -> tuple[Node, Node] | None:
    """Weight of a product and its other operand rounded, where that is possible and pays."""
    weight = node.launch and node.launch.operands.get("weights")
    if node.launch is None or weight is None:
        return None
    if not graph.capabilities.software or not fits_q8(weight):
        return None
    return weight, graph.shared(q8_activations, node.launch.operands["x"])


@mulmat_q8_gated.fuses(*GATED, exact=False)
def gate_and_projection(node: Node, graph: Graph) -> Node | None:
    """Two products of one input, joined by a gated activation, whose weights are neighbours."""
    found = gate_and_up(node, graph, "mulmat_q8")
    if found is None or node.call is None:
        return None
    weight, x = found
    return graph.call(mulmat_q8_gated, weight, x, activation=GATED[node.call.op.name])


def gate_and_up(node: Node, graph: Graph, product: str) -> tuple[Node, Node] | None:
    """Weight of both products behind a gated activation, as one, and what they multiply."""
    if node.launch is None:
        return None
    gate, up = (graph.sole(node.launch.operands[name], product) for name in "ab")
    if gate is None or up is None or gate.launch is None or up.launch is None:
        return None
    first, second = gate.launch.operands, up.launch.operands
    x, weight = first["x"], _neighbours(first["weights"], second["weights"])
    same = x.storage is second["x"].storage and x.spec == second["x"].spec
    return (weight, x) if same and weight is not None and fits_gated(weight) else None


def _neighbours(a: Node, b: Node) -> Node | None:
    """Two matrices that lie one behind the other, as one."""
    spec = a.spec
    if a.storage is not b.storage or spec.shape != b.spec.shape:
        return None
    if spec.offset + spec.size != b.spec.offset:
        return None
    shape = (2 * spec.shape[0], *spec.shape[1:])
    return Node(Spec(shape, spec.dtype, spec.strides, spec.offset), a.storage)


@rms_norm_q8.fuses("q8_activations", exact=False)
def rounded_norm(node: Node, graph: Graph) -> Node | None:
    """A norm that only products with rounded activations read."""
    norm = node.launch and graph.sole(node.launch.operands["x"], "rms_norm")
    if not norm or norm.launch is None or norm.call is None:
        return None
    x, weight = norm.launch.operands["x"], norm.launch.operands["weight"]
    dense = x.spec.is_dense and x.spec.offset % 4 == 0 and weight.spec.offset % 4 == 0
    if not dense or {x.spec.dtype, weight.spec.dtype} != {F32} or x.spec.shape[-1] % GROUP:
        return None
    weighted = norm.launch.choices["WEIGHTED"]
    eps = norm.call.kwargs["eps"]
    return graph.call(rms_norm_q8, x, weight if weighted else None, eps=eps)
