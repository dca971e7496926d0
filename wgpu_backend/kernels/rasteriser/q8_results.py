"""Products with activations in eight bits whose results leave in eight bits, for the next product.

A work group of a rasteriser makes 32 rows of a column, which is a group, and its lanes tell each
other the rest. Rules make these ops where nothing else reads what is rounded.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.rasteriser import products_q8
from wgpu_backend.kernels.rasteriser.refusal import SHUFFLES, no_kernel
from wgpu_backend.kernels.rasteriser.weighted_sums import with_sums
from wgpu_backend.ops.check import require
from wgpu_backend.ops.gates import gated, lies_whole
from wgpu_backend.ops.op import op
from wgpu_backend.ops.q8 import GROUP, WORDS, added
from wgpu_backend.ops.q8 import product as plain_product

BINDINGS = 9  # of the largest kernel: four planes of weights, and five


def product(launch: Launch, capabilities: Capabilities) -> Launch:
    """Multiply, and round what a work group makes."""
    return products_q8.product(launch, capabilities)


@op(
    select=no_kernel("mulmat_q8_gated_q8", SHUFFLES, "mulmat_q8_gated and q8_activations"),
    shader=products_q8.SHADER,
    dense=("x",),
    trusted=True,
)
def mulmat_q8_gated_q8(
    weight: Node, x: Node, *, activation: str, eps: float | None = None
) -> Launch:
    """Gate and projection as `mulmat_q8_gated`, rounded as `q8_activations` rounds.

    Parameters
    ----------
    weight : (2 m, k), dense, a format that `fits_q8` takes; `m` a multiple of 32
    x, activation, eps
        See `mulmat_q8_gated`.

    Returns
    -------
    (..., m / 32, 12), u32

    Raises
    ------
    ShapeError
        As `mulmat_q8_gated`, or there are no whole groups of rows.
    DeviceError
        When it is run: as `mulmat_q8_gated`, or the device has no kernel for it.
    """
    name = "mulmat_q8_gated_q8"
    return _rounded(
        name, gated(name, plain_product(name, weight, x, eps), activation), "ending/rounded"
    )


@op(
    select=no_kernel("mulmat_q8_add_q8", SHUFFLES, "mulmat_q8_add and q8_weighted"),
    shader=products_q8.SHADER,
    dense=("x", "addend", "scale"),
    trusted=True,
)
def mulmat_q8_add_q8(
    weight: Node, x: Node, addend: Node, scale: Node, total: Node, *, eps: float | None = None
) -> Launch:
    """Product and sum as `mulmat_q8_add`, and the sums once more as a norm's product wants them.

    Parameters
    ----------
    weight : (m, k), dense, a format that `fits_q8` takes; `m` a multiple of 32
    x, addend, eps
        See `mulmat_q8_add`.
    scale : (m,), f32
        Weight of the norm.
    total : (..., m), f32, dense; written
        The sums.

    Returns
    -------
    (..., m / 32, 12), u32
        As `q8_weighted` gives of `total` and `scale`.

    Raises
    ------
    ShapeError
        As `mulmat_q8_add`; there are no whole groups of rows; `scale` or `total` do not fit.
    DeviceError
        When it is run: the weight lies in several bindings, or the device has no kernel for it.
    """
    name = "mulmat_q8_add_q8"
    launch = with_sums(name, added(name, plain_product(name, weight, x, eps), addend), scale, total)
    vectors = {"addend": "vec4/f32", "scale": "vec4/f32"}
    launch = replace(launch, choices={**launch.choices, **vectors})
    return _rounded(name, launch, "ending/summed")


def _rounded(name: str, launch: Launch, ending: str) -> Launch:
    """Launch of a product whose work groups round what they make."""
    *rows, m = launch.out.shape
    require(m % GROUP == 0, ShapeError, f"{name}: {m} rows of results, needs a multiple of {GROUP}")
    out = Spec.dense((*rows, m // GROUP, WORDS), U32)
    return replace(launch, out=out, choices={**launch.choices, "ending": ending})


@mulmat_q8_gated_q8.fuses("q8_activations", exact=False)
def rounded_gate_and_projection(node: OpNode, graph: Graph) -> Node | None:
    """A gated product that only products with rounded activations read."""
    found = graph.single_use_producer(node.operands["x"], "mulmat_q8_gated")
    if found is None or not _fits(found, node, graph):
        return None
    weight, x = found.call.args
    return graph.call(mulmat_q8_gated_q8, weight, x, **found.call.kwargs)


@mulmat_q8_add_q8.fuses("q8_weighted", exact=False)
def rounded_sum(node: OpNode, graph: Graph) -> Node | None:
    """A residual, and the weighted rows of which a product that normalises makes the norm."""
    found = graph.producer(node.operands["x"], "mulmat_q8_add")
    if found is None or not _fits(found, node, graph):
        return None
    if graph.capabilities.max_storage_bindings < BINDINGS or not graph.can_defer_write(
        found, found.node
    ):
        return None
    total = Node(found.spec, found.node.storage)
    scale = node.operands["weight"]
    return graph.call(mulmat_q8_add_q8, *found.call.args, scale, total, **found.call.kwargs)


def _fits(found: OpNode, node: OpNode, graph: Graph) -> bool:
    """Whether work groups make groups of what is rounded."""
    whole = lies_whole(found.operands["weights"]) and found.spec.shape[-1] % GROUP == 0
    same = found.spec.shape == node.operands["x"].spec.shape
    return graph.capabilities.telling_lanes and whole and same
