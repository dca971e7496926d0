"""Products of many columns in pairs of f16, where hardware has such arithmetic.

A rule makes them where the caller allows activations to be rounded. Values of x, and weights that
are not f16 anyway, are rounded to eleven bits, and 32 products summed with as many, before the sum
goes into f32: an NMSE of up to 1e-6, where eight bits cost some 4e-5.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Groups, Launch, Node
from wgpu_backend.ops.check import require, row_count
from wgpu_backend.ops.gates import joined_rows, require_whole
from wgpu_backend.ops.matmul import TILED, mulmat, mulmat_add, mulmat_gated
from wgpu_backend.ops.matvec import COLUMNS
from wgpu_backend.ops.op import op
from wgpu_backend.ops.q8 import fits_q8
from wgpu_backend.ops.register_tiles import f16_tile, grid
from wgpu_backend.ops.rounding import ACTIVATIONS, gate_and_up, is_faster


def has_kernel(capabilities: Capabilities) -> bool:
    """Whether a device takes these products."""
    return capabilities.f16 and not capabilities.software


def select_f16(launch: Launch, capabilities: Capabilities) -> Launch:
    """Size the tiles, for the only kernel there is.

    Raises
    ------
    DeviceError
        The device has no arithmetic in f16, or is a rasteriser; or as `mulmat`.
    """
    require(
        has_kernel(capabilities),
        DeviceError,
        f"mulmat_f16: the device has f16 {capabilities.f16}, software {capabilities.software}; "
        "needs arithmetic in f16, and hardware; use mulmat",
    )
    require_whole(launch)
    n = launch.count("n")
    rows = launch.operands["weights"].spec.shape[0]
    tile, choices = f16_tile(rows, n, capabilities)

    def groups(count: int) -> Groups:
        return grid(count, n, tile)

    choices = {**launch.choices, **choices, "tile": "kernels/gpu/tile/f16"}
    return replace(launch, shader=TILED, groups=groups, choices=choices)


@op(select=select_f16, shader=TILED, dense=("x", "addend"), trusted=True)
def mulmat_f16(
    weight: Node, x: Node, addend: Node | None = None, *, activation: str | None = None
) -> Launch:
    """Multiply as `mulmat`, `mulmat_add` or `mulmat_gated`, in f16.

    Parameters
    ----------
    weight : (m, k), dense, any float or block format; k a multiple of 32
    x : (..., n, k), f32
    addend : (m,) or (..., n, m), f32, or None
    activation : str or None
        See `mulmat_gated`, which it makes this.

    Returns
    -------
    (..., n, m), f32

    Raises
    ------
    ShapeError
        As those; or the weight is not one for whole groups.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    if activation is not None:
        return mulmat_gated.record(weight, x, activation=activation)
    if addend is not None:
        return mulmat_add.record(weight, x, addend)
    launch = mulmat.record(weight, x)
    require(
        launch.shader != "matmul",
        ShapeError,
        f"mulmat_f16: weight is {weight.spec.shape}, needs one dense matrix with whole groups of "
        "32; use mulmat",
    )
    return launch


@mulmat_f16.fuses("mulmat", "mulmat_add", "mulmat_gated", exact=False)
def in_pairs(node: OpNode, graph: Graph) -> Node | None:
    """A product of many columns that eight bits are not better for."""
    weight, x = node.operands.get("weights"), node.operands["x"]
    if weight is None or not has_kernel(graph.capabilities) or node.options.get("eps") is not None:
        return None
    n = row_count(x.spec)
    rounded = fits_q8(weight) and is_faster(weight.spec.dtype, n, graph.capabilities)
    if n <= COLUMNS or rounded or weight.spec.dtype == F32:
        return None
    activation = {"activation": node.options["activation"]} if joined_rows(node.launch) > 1 else {}
    return graph.call(mulmat_f16, *node.call.args, **_addend(node), **activation)


def _addend(node: OpNode) -> dict[str, Node]:
    given = node.call.kwargs.get("addend")
    return {} if given is None else {"addend": given}


@mulmat_f16.fuses(*ACTIVATIONS, exact=False)
def gate_and_projection(node: OpNode, graph: Graph) -> Node | None:
    """Two products of one input, joined by a gated activation, whose weights are neighbours."""
    return gate_and_up(node, graph, "mulmat_f16", mulmat_f16)
