"""Convolutions by matrix units: products whose columns are the input patches of pixels.

All of x is divided by one power of two, so that it fits f16 whatever its values are. One kernel
before finds its largest magnitude, another rounds it, once for all taps and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

import numpy as np

from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.kernels.gpu.matrix import (
    Blocks,
    has_matrix_units,
    pick_blocks,
    product_choices,
)
from wgpu_backend.kernels.gpu.products import are_tiles_possible
from wgpu_backend.kernels.gpu.register_tiles import GROUP, grid
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.check import FLOATS, MAX_GROUPS, grid_for, require_dtype
from wgpu_backend.ops.conv.convolution import convolve, convolve_reference
from wgpu_backend.ops.conv.extents import Padding
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.views import make_view

# A part has a work group of its own, and every work group that rounds reads all of them.
MOST_PARTS, LEAST_VECTORS = 256, 1024
# Vectors that a work group rounds, and values after the final pixel of zeros: exponent and zeros.
STEP, TAIL = 2048, 8
WEIGHTS = (F16, BF16)


@op(
    select=no_kernel("magnitudes", "matrix units", "abs and max"),
    shader="kernels/gpu/magnitudes",
    dense=("x",),
    trusted=True,
)
def magnitudes(x: Node) -> Launch:
    """Find the largest finite magnitudes of parts of a tensor, for convolutions by matrix units.

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
    """Find the largest finite magnitude of each part."""
    part, parts = _parts(x.size)
    padded = np.zeros(parts * part * 4, np.float32)
    padded[: x.size] = np.where(np.isfinite(x), np.abs(x), 0).reshape(-1)
    return padded.reshape(parts, -1).max(axis=-1)


@op(
    select=no_kernel("f16_pixels", "matrix units", "the values as they are"),
    shader="kernels/gpu/f16_pixels",
    dense=("x",),
    trusted=True,
)
def f16_pixels(x: Node, magnitudes: Node) -> Launch:
    """Round a tensor to f16 after scaling by one power of two, for convolutions by matrix units.

    Parameters
    ----------
    x : (..., c), f32, f16 or bf16
        `c` a multiple of 4.
    magnitudes : (parts,), f32
        Of `x`.

    Returns
    -------
    (size + c + 8,), f16
        Values divided by a power of two, so that the largest magnitude is from 2^14 to below 2^15;
        then a pixel of zeros, the exponent of that power, and seven zeros. Values more than 2^28
        below the largest lose digits.
    """
    require_dtype("f16_pixels", "x", x, FLOATS)
    vectors, channels = x.spec.size // 4, x.spec.shape[-1]
    return Launch(
        Spec.dense((x.spec.size + channels + TAIL,), F16),
        {"x": x, "magnitudes": magnitudes},
        groups=grid_for(max(ceil(vectors / STEP), 1)),
        params={
            "vectors": vectors,
            "zeros": channels // 4,
            "step": STEP,
            "parts": magnitudes.spec.size,
        },
        work=2 * x.spec.nbytes,
    )


@f16_pixels.reference
def f16_pixels_reference(x: Array, magnitudes: Array) -> Array:
    """Divide by the power of two below the largest magnitude, times 2^-14."""
    exponent = np.frexp(np.clip(magnitudes.max(initial=0), 2.0**-100, 2.0**122))[1] - 15
    values = np.ldexp(x, -exponent).astype(np.float16).reshape(-1)
    tail = np.zeros(x.shape[-1] + TAIL, np.float16)
    tail[x.shape[-1]] = exponent
    return np.concatenate([values, tail])


def widened(x: Array, shape: Shape) -> Array:
    """Return the values of a tensor of `shape` that `f16_pixels` rounded."""
    size = prod(shape)
    return np.ldexp(x[:size].astype(np.float32), int(x[size + shape[-1]])).reshape(shape)


@op(
    select=no_kernel("convolve_matrix", "matrix units", "convolve"),
    shader="kernels/gpu/conv_matrix",
    trusted=True,
)
def convolve_matrix(
    x: Node,
    weight: Node,
    *,
    shape: Shape,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
) -> Launch:
    """Convolve with values and weights in f16, and sums in f32.

    Parameters
    ----------
    x : (size + c + 8,), f16
        See `f16_pixels`.
    weight, strides, paddings, dilations
        See `convolve`; channels are whole groups of 32, and weights f16 or bf16.
    shape : (n, d, h, w, c)
        Of the values of `x`.

    Returns
    -------
    (n, od, oh, ow, o), f32.

    Raises
    ------
    DeviceError
        When it is run: the device has no matrix units, or channels are no whole groups of 32.
    """
    values = make_view(x, Spec.dense(shape, F16))
    launch = convolve.record(
        values, weight, strides=strides, paddings=paddings, dilations=dilations, groups=1
    )
    # The kernel reads what is behind the values, too.
    return replace(
        launch,
        operands={"x": x, "weights": weight},
        params={**launch.params, "x_vectors": values.spec.size // 4},
    )


@convolve_matrix.reference
def convolve_matrix_reference(
    x: Array,
    weight: Array,
    *,
    shape: Shape,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
) -> Array:
    """Convolve in f32."""
    return convolve_reference(
        widened(x, shape), weight, strides=strides, paddings=paddings, dilations=dilations, groups=1
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
    rounded = graph.call(f16_pixels, x, graph.shared(magnitudes, x))
    return graph.call(convolve_matrix, rounded, weight, shape=x.spec.shape, **how)


def as_it_is(launch: Launch, _: Capabilities) -> Launch:
    """Return the op's own launch."""
    return launch


def conv_choices(blocks: Blocks, unit: MatrixUnit, dtype: DType) -> dict[str, str | int | float]:
    """Return the choices of a convolution's kernel."""
    tile = blocks.tile(unit)
    choices = product_choices(blocks, unit, dtype, 1)
    del choices["RESULTS"]
    return {**choices, "PLACES": ceil(tile.columns / tile.threads)}


def conv_matrix(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of a convolution on matrix units; None for other channels or strides."""
    unit, weight = capabilities.matrix, launch.operands["weights"].spec
    if unit is None or not are_tiles_possible(launch):
        return None
    rows, n = weight.shape[0], launch.count("pixels")
    blocks = pick_blocks(rows, n, capabilities)
    tile = blocks.tile(unit)
    if ceil(n / tile.columns) > MAX_GROUPS:
        return None
    params = {
        "m": rows,
        "n": n,
        "groups": weight.size // rows // GROUP,
        "tap_groups": weight.shape[-1] // GROUP,
        "weights_rows": rows,
    }
    return replace(
        launch,
        shader="kernels/gpu/conv_matrix",
        groups=grid(rows, n, tile),
        params={**launch.params, **params},
        choices=conv_choices(blocks, unit, weight.dtype),
    )
