"""Convolutions by matrix units: products whose columns are what pixels look at.

All of x is divided by one power of two, so that it fits f16 whatever its values are; a kernel
before finds its largest magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from wgpu_backend.dtypes import BF16, F16, F32
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.gpu.matrix import has_matrix_units, pick_blocks, product_choices
from wgpu_backend.kernels.gpu.products import are_tiles_possible
from wgpu_backend.kernels.gpu.register_tiles import GROUP, grid
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.check import FLOATS, MAX_GROUPS, require_dtype
from wgpu_backend.ops.conv.convolution import convolve, convolve_reference
from wgpu_backend.ops.conv.extents import Padding
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# A part has a work group of its own, and every work group of a convolution reads all of them.
MOST_PARTS, LEAST_VECTORS = 256, 1024
WEIGHTS = (F16, BF16)


@op(
    select=no_kernel("magnitudes", "matrix units", "abs and max"),
    shader="kernels/gpu/magnitudes",
    dense=("x",),
    trusted=True,
)
def magnitudes(x: Node) -> Launch:
    """Find the largest magnitudes of parts of a tensor, for convolutions by matrix units.

    Parameters
    ----------
    x : f32, f16 or bf16
        Of any shape, with whole vectors of four in total.

    Returns
    -------
    (parts,), f32
        Up to 256.
    """
    require_dtype("magnitudes", "x", x, FLOATS)
    part, parts = _parts(x.spec.size)
    return Launch(
        Spec.dense((parts,), F32),
        {"x": x},
        groups=(parts, 1, 1),
        params={"vectors": x.spec.size // 4, "part": part},
        work=x.spec.nbytes,
    )


def _parts(size: int) -> tuple[int, int]:
    """Return the vectors of a part, and the number of parts."""
    vectors = size // 4
    part = max(ceil(vectors / MOST_PARTS), LEAST_VECTORS)
    return part, max(ceil(vectors / part), 1)


@magnitudes.reference
def magnitudes_reference(x: Array) -> Array:
    """Find the largest magnitude of each part."""
    part, parts = _parts(x.size)
    padded = np.zeros(parts * part * 4, np.float32)
    padded[: x.size] = np.abs(x.reshape(-1))
    return padded.reshape(parts, -1).max(axis=-1)


@op(
    select=no_kernel("convolve_matrix", "matrix units", "convolve"),
    shader="kernels/gpu/conv_matrix",
    trusted=True,
)
def convolve_matrix(
    x: Node,
    weight: Node,
    magnitudes: Node,
    *,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
) -> Launch:
    """Convolve with values and weights in f16, and sums in f32.

    Parameters
    ----------
    x, weight, strides, paddings, dilations
        See `convolve`; channels are whole groups of 32, and weights f16 or bf16.
    magnitudes : (parts,), f32
        Of `x`.

    Returns
    -------
    (n, od, oh, ow, o), f32.

    Raises
    ------
    DeviceError
        When it is run: the device has no matrix units, or channels are no whole groups of 32.
    """
    launch = convolve.record(
        x, weight, strides=strides, paddings=paddings, dilations=dilations, groups=1
    )
    return replace(launch, operands={**launch.operands, "magnitudes": magnitudes})


@convolve_matrix.reference
def convolve_matrix_reference(
    x: Array,
    weight: Array,
    magnitudes: Array,
    *,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
) -> Array:
    """Convolve in f32."""
    return convolve_reference(
        x, weight, strides=strides, paddings=paddings, dilations=dilations, groups=1
    )


@convolve_matrix.fuses("convolve", exact=False)
def in_matrices(node: OpNode, graph: Graph) -> Node | None:
    """Replace a convolution by the one on matrix units, if rounding is allowed."""
    x, weight = node.operands["x"], node.operands["weights"]
    whole = x.spec.is_dense and x.spec.offset % 4 == 0 and weight.spec.dtype in WEIGHTS
    if not whole or not has_matrix_units(graph.capabilities) or not are_tiles_possible(node.launch):
        return None
    names = ("strides", "paddings", "dilations")
    how = {name: node.call.kwargs[name] for name in names}
    return graph.call(convolve_matrix, x, weight, graph.shared(magnitudes, x), **how)


def select_magnitudes(launch: Launch, _: Capabilities) -> Launch:
    """Return the op's own launch, with a workgroup for each part."""
    return launch


def conv_matrix(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of a convolution on matrix units; None for other channels or strides."""
    unit, weight = capabilities.matrix, launch.operands["weights"].spec
    if unit is None or not are_tiles_possible(launch):
        return None
    rows, n = weight.shape[0], launch.count("pixels")
    blocks = pick_blocks(rows, n, capabilities, convolves=True)
    tile = blocks.tile(unit)
    if ceil(n / tile.columns) > MAX_GROUPS:
        return None
    params = {
        "m": rows,
        "n": n,
        "groups": weight.size // rows // GROUP,
        "tap_groups": weight.shape[-1] // GROUP,
        "weights_rows": rows,
        "parts": launch.operands["magnitudes"].spec.size,
    }
    choices = product_choices(blocks, unit, weight.dtype, 1)
    del choices["RESULTS"]
    return replace(
        launch,
        shader="kernels/gpu/conv_matrix",
        groups=grid(rows, n, tile),
        params={**launch.params, **params},
        choices=choices,
    )
