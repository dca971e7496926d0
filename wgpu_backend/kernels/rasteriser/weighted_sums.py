"""Residuals that leave weighted by the norm that follows, with their squares, from their product.

A work group of a rasteriser makes 64 rows of a column, whose squares are one number, and its lanes
tell each other theirs. A rule makes this op where nothing but products reads the norm.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.rasteriser import products
from wgpu_backend.kernels.rasteriser.images import lies_in_image
from wgpu_backend.kernels.rasteriser.refusal import TEXTURES, no_kernel
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_row
from wgpu_backend.ops.gates import lies_whole
from wgpu_backend.ops.matmul import mulmat_add
from wgpu_backend.ops.normed import weighted_spec
from wgpu_backend.ops.op import op
from wgpu_backend.ops.tiles import FEW


def product(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Multiply with a weight that lies in a texture; None for others."""
    if not lies_in_image(launch, "weights", capabilities):
        return None
    return products.product(launch, capabilities)


@op(
    select=no_kernel("mulmat_add_weighted", TEXTURES, "mulmat_add and norm_weighted"),
    shader=products.SHUFFLED,
    dense=("x", "addend", "scale"),
    trusted=True,
)
def mulmat_add_weighted(
    weight: Node, x: Node, addend: Node, scale: Node, total: Node, *, eps: float | None = None
) -> Launch:
    """Product and sum as `mulmat_add`, and the sums once more as a norm's product wants them.

    Parameters
    ----------
    weight : (m, k), dense, f32, f16 or bf16, in an image; m and k multiples of 32
    x, addend, eps
        See `mulmat_add`.
    scale : (m,), f32
        Weight of the norm.
    total : (..., m), f32, dense; written
        The sums.

    Returns
    -------
    (..., m + squares), f32
        As `norm_weighted` gives of `total` and `scale`.

    Raises
    ------
    DTypeError
        The weight is in blocks.
    ShapeError
        As `mulmat_add`, or `scale` or `total` do not fit.
    DeviceError
        When it is run: the weight is in no image of the device, or in several.
    """
    require_dtype("mulmat_add_weighted", "weight", weight, FLOATS)
    launch = mulmat_add.record(weight, x, addend, eps=eps)
    launch = with_sums("mulmat_add_weighted", launch, scale, total)
    return replace(
        launch,
        out=weighted_spec(launch.out),
        params={**launch.params, "scale_offset": scale.spec.offset},
        choices={**launch.choices, "ending": "leaving/weighted"},
    )


def with_sums(name: str, launch: Launch, scale: Node, total: Node) -> Launch:
    """Launch of a product that also writes what it sums, with the weight of the norm of that.

    Raises
    ------
    DTypeError, ShapeError
        `scale` is no row of f32 as long as those of the result, or `total` is not like the result.
    """
    require_row(name, "scale", scale, launch.out.shape[-1])
    _require_total(name, total, launch.out)
    operands = {**launch.operands, "scale": scale, "total": total}
    return replace(launch, operands=operands, writes=("total",))


def _require_total(op: str, total: Node, like: Spec) -> None:
    """Check that an operand, into which sums are written, is as these and begins its storage."""
    spec = total.spec
    require_dtype(op, "total", total, (F32,))
    require(
        spec.shape == like.shape and spec.is_dense and not spec.offset,
        ShapeError,
        f"{op}: total is {spec.shape} of strides {spec.strides}, needs a dense {like.shape}",
    )


@mulmat_add_weighted.fuses("norm_weighted")
def weighted_sum(node: OpNode, graph: Graph) -> Node | None:
    """A residual of few columns, and the weighted rows of which products make the norm."""
    x = node.operands["x"]
    found = graph.producer(x, "mulmat_add")
    if found is None or found.spec.shape != x.spec.shape or not _fits(found, graph.capabilities):
        return None
    if not graph.can_defer_write(found, found.node):
        return None
    total = Node(found.spec, found.node.storage)
    kwargs = {**found.call.kwargs, "scale": node.operands["weight"], "total": total}
    return graph.call(mulmat_add_weighted, *found.call.args, **kwargs)


def _fits(product: OpNode, capabilities: Capabilities) -> bool:
    """Whether work groups of a product make as many rows as share a number of squares.

    Of many columns they make fewer, since that is the faster.
    """
    weight = product.operands["weights"]
    imaged = weight.spec.dtype in FLOATS and lies_in_image(product.launch, "weights", capabilities)
    return imaged and lies_whole(weight) and product.launch.count("n") <= FEW
