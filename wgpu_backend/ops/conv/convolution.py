"""Convolutions over channels-last tensors: conv1d, conv2d, conv3d, conv1d_dw.

`x/ml` and this package have channels last: (n, h, w, c) and weights (o, kh, kw, c). Ollama's `ml`
has them before the pixels, its receiver is the kernel, and it names the contiguous axis first: its
``kernel.Conv2D(input, s0, s1, p0, p1, d0, d1)`` of [kw, kh, ic, oc] and [w, h, ic, n] is
``input.permute(0, 2, 3, 1).conv2d(kernel.permute(0, 2, 3, 1), (s1, s0), (p1, p0), (d1, d0))`` with
the result's ``permute(0, 3, 1, 2)``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, extents
from wgpu_backend.ops.check import FLOATS, grid_for, require, require_dtype, require_rank
from wgpu_backend.ops.conv.extents import (
    AXES,
    Padding,
    padded_sides,
    require_paddings,
    result_extents,
    wide_extents,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.views import make_view

# Threads of a work group.
WIDTH = 64
# Pixels that one thread of the vector kernel makes, of four outputs each.
PIXELS = 4


def set_group_size(launch: Launch, width: int) -> Launch:
    """Return the launch of the vector kernel with `width` threads a work group."""
    pixel_groups = -(-launch.count("pixels") // (width * PIXELS))
    return replace(
        launch,
        groups=grid_for(pixel_groups * launch.count("blocks")),
        params={**launch.params, "pixel_groups": pixel_groups},
        choices={**launch.choices, "WG": width, "PIXELS": PIXELS},
    )


@op(trusted=True)
def convolve(
    x: Node,
    weight: Node,
    *,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
    groups: int,
    spread: Sequence[int] = (1, 1, 1),
    flipped: bool = False,
) -> Launch:
    """Convolve over three axes, summing in f32; `conv2d` and the others call this op.

    Source: Dumoulin & Visin 2016, "A guide to convolution arithmetic", relationships 14 and 15.

    Parameters
    ----------
    x : (n, d, h, w, c)
        f32, f16 or bf16, of any strides.
    weight : (o, kd, kh, kw, c / groups)
        f32, f16 or bf16.
    strides, dilations : three int each
        Of depth, height and width.
    paddings : three int, or pairs of int
        Zeros on both sides, or before and after; less than none leaves values out.
    groups : int
        Divides c and o: each part of the outputs sees its part of the channels.
    spread : three int
        Steps from one value of `x` to the next; there are zeros between them.
    flipped : bool
        The kernel's last tap comes first.

    Returns
    -------
    (n, od, oh, ow, o), f32.

    Raises
    ------
    ShapeError
        Channels do not fit, or the kernel is larger than the padded `x`.
    """
    for name, node in (("x", x), ("weight", weight)):
        require_rank("convolve", name, node, 5, 5)
        require_dtype("convolve", name, node, FLOATS)
    _require_groups(x.spec.shape, weight.spec.shape, groups)
    sides, spread = padded_sides(paddings), extents("convolve: spread", spread)
    wide = wide_extents(x.spec.shape[1:4], spread)
    pixels = result_extents(wide, weight.spec.shape[1:4], strides, sides, dilations)
    outputs = weight.spec.shape[0]
    out = Spec.dense((x.spec.shape[0], *pixels, outputs), F32)
    launch = Launch(
        out,
        {"x": x, "weights": weight},
        params={
            "outputs": outputs,
            "group_outputs": outputs // groups,
            **_steps(x.spec, weight.spec),
            "size": x.spec.shape[:4],
            "out": out.shape[:4],
            "kernel": (1, *weight.spec.shape[1:4]),
            "step": (1, *strides),
            # Negative padding crops; u32 arithmetic wraps around as it should.
            "before": (0, *(before % 2**32 for before, _ in sides)),
            "dilation": (1, *dilations),
            "spread": (1, *spread),
        },
        choices={"SPREAD": any(s != 1 for s in spread), "FLIPPED": flipped},
        work=2 * out.size * math.prod(weight.spec.shape[1:]),
    )
    if _in_vectors(x.spec, weight.spec):
        return _by_vectors(launch, groups)
    return _by_values(launch)


@convolve.reference
def convolve_reference(
    x: Array,
    weight: Array,
    *,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
    groups: int,
    spread: Sequence[int] = (1, 1, 1),
    flipped: bool = False,
) -> Array:
    """Sum, over taps, shifted pixels times the tap's matrix, group by group."""
    # A transposed convolution spreads the values, with zeros between them.
    padded = padded_by(apart(x, spread), paddings)
    # A transposed convolution is one with the kernel turned around.
    weight = weight[:, ::-1, ::-1, ::-1] if flipped else weight
    kernel, inner = weight.shape[1:4], weight.shape[4]
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded.shape[1:4], kernel, strides, dilations, strict=True)
    ]
    y = np.zeros((len(x), *out, groups, len(weight) // groups), np.float32)
    parts = weight.reshape(groups, len(weight) // groups, *kernel, inner)
    for tap in itertools.product(*map(range, kernel)):
        index = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, out, strict=True)
        )
        seen = padded[:, *index].reshape(len(x), *out, groups, inner)
        y += np.einsum("ndhwgc,goc->ndhwgo", seen, parts[:, :, *tap])
    return y.reshape(len(x), *out, len(weight))


def _by_vectors(launch: Launch, groups: int) -> Launch:
    """Return the launch of the kernel that reads four channels and makes four outputs at once."""
    outputs = launch.out.shape[4]
    params = {
        "pixels": math.prod(launch.out.shape[:4]),
        "blocks": groups * -(-outputs // groups // 4),
        "vec4s": launch.operands["weights"].spec.shape[4] // 4,
    }
    return set_group_size(replace(launch, params={**launch.params, **params}), WIDTH)


def _by_values(launch: Launch) -> Launch:
    """Return the launch of the kernel that takes channels at any stride."""
    x, weight = (launch.operands[name].spec for name in ("x", "weights"))
    params = {
        "values": launch.out.size,
        "channels": weight.shape[4],
        "x_channel": x.strides[4],
        "weight_channel": weight.strides[4],
    }
    return replace(
        launch,
        threads=launch.out.size,
        params={**launch.params, **params},
        shader="ops/conv/convolve_plain",
    )


def _steps(x: Spec, weight: Spec) -> Mapping[str, int]:
    """Return the strides of the axes that are not channels, in elements."""
    names = ("batch", *AXES)
    steps = {f"x_{name}": x.strides[i] for i, name in enumerate(names)}
    return steps | {f"weight_{name}": weight.strides[i] for i, name in enumerate(("row", *AXES))}


def _in_vectors(x: Spec, weight: Spec) -> bool:
    """Return whether channels are whole vectors of four, in input and weight."""
    return weight.shape[4] % 4 == 0 and all(
        s.strides[4] == 1 and all(n % 4 == 0 for n in (s.offset, *s.strides[:4]))
        for s in (x, weight)
    )


def _require_groups(x: Shape, weight: Shape, groups: int) -> None:
    require(
        groups > 0 and weight[0] % groups == 0,
        ShapeError,
        f"convolve: {weight[0]} outputs, not a multiple of {groups} groups",
    )
    require(
        x[4] == weight[4] * groups,
        ShapeError,
        f"convolve: x has {x[4]} channels, weight needs {weight[4]} in each of {groups} groups",
    )


def conv3d(
    x: Node,
    weight: Node,
    strides: Sequence[int] = (1, 1, 1),
    paddings: Sequence[Padding] = (0, 0, 0),
    dilations: Sequence[int] = (1, 1, 1),
    groups: int = 1,
) -> Node:
    """Convolve over depth, height and width.

    `ml` writes ``kernel.Conv3D(input, c, …)`` of [kw, kh, kd, c · oc] and [w, h, d, c · n]: reshape
    to (oc, c, kd, kh, kw) and (n, c, d, h, w), then permute both by (0, 2, 3, 4, 1).

    Parameters
    ----------
    x : (n, d, h, w, c)
        f32, f16 or bf16.
    weight : (o, kd, kh, kw, c / groups)
        f32, f16 or bf16.
    strides, paddings, dilations : three int each
        Of depth, height and width; a padding may be two, before and after.

    Returns
    -------
    (n, od, oh, ow, o), f32
        ``od = (d + 2 padding - dilation (kd - 1) - 1) // stride + 1``, and so on.

    Raises
    ------
    ShapeError
        Channels do not fit, or the kernel is larger than the padded `x`.
    """
    require_rank("conv3d", "x", x, 5, 5)
    require_rank("conv3d", "weight", weight, 5, 5)
    return over(x, weight, strides, paddings, dilations, groups)


def conv2d(
    x: Node,
    weight: Node,
    strides: Sequence[int] = (1, 1),
    paddings: Sequence[Padding] = (0, 0),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Node:
    """Convolve over height and width.

    `ml` has the kernel as its receiver and channels before pixels; see the module.

    Parameters
    ----------
    x : (n, h, w, c)
        f32, f16 or bf16.
    weight : (o, kh, kw, c / groups)
        f32, f16 or bf16.
    strides, paddings, dilations : two int each
        Of height and width; a padding may be two, before and after.

    Returns
    -------
    (n, oh, ow, o), f32
        ``oh = (h + 2 padding - dilation (kh - 1) - 1) // stride + 1``, and so on.

    Raises
    ------
    ShapeError
        Channels do not fit, or the kernel is larger than the padded `x`.
    """
    require_rank("conv2d", "x", x, 4)
    require_rank("conv2d", "weight", weight, 4)
    # A copy costs less than the kernel for single values.
    if weight.spec.shape[3] % 4 == 0:
        x, weight = _channels_last(x), _channels_last(weight)
    return over(x, weight, strides, paddings, dilations, groups)


def conv1d(
    x: Node,
    weight: Node,
    stride: int = 1,
    padding: Padding = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Node:
    """Convolve over one axis.

    Parameters
    ----------
    x : (n, length, c)
        f32, f16 or bf16.
    weight : (o, k, c / groups)
        f32, f16 or bf16.
    padding : int or (int, int)
        Zeros on both sides, or before and after.

    Returns
    -------
    (n, ol, o), f32
        ``ol = (length + padding on both sides - dilation (k - 1) - 1) // stride + 1``.

    Raises
    ------
    ShapeError
        Channels do not fit, or the kernel is larger than the padded `x`.
    """
    require_rank("conv1d", "x", x, 3, 3)
    require_rank("conv1d", "weight", weight, 3, 3)
    return over(x, weight, (stride,), (padding,), (dilation,), groups)


def conv1d_dw(x: Node, weight: Node, stride: int = 1, padding: int = 0, dilation: int = 1) -> Node:
    """Convolve each channel with its own kernel.

    `ml` writes ``data.Conv1DDW(weight, s, p, d)`` of [length, c, n] and [k, 1, c]: that is
    ``data.permute(0, 2, 1).conv1d_dw(weight.reshape(c, k), s, p, d)``.

    Parameters
    ----------
    x : (n, length, c)
        f32, f16 or bf16.
    weight : (c, k)
        f32, f16 or bf16.

    Returns
    -------
    (n, ol, c), f32
        ``ol = (length + 2 padding - dilation (k - 1) - 1) // stride + 1``.

    Raises
    ------
    ShapeError
        Channels differ, or the kernel is larger than the padded `x`.
    """
    require_rank("conv1d_dw", "x", x, 3, 3)
    require_rank("conv1d_dw", "weight", weight, 2, 2)
    channels, taps = weight.spec.shape
    require(
        x.spec.shape[2] == channels,
        ShapeError,
        f"conv1d_dw: x has {x.spec.shape[2]} channels, weight has {channels}",
    )
    spec = weight.spec
    rows = Spec((channels, taps, 1), spec.dtype, (*spec.strides, 1), spec.offset)
    return over(x, make_view(weight, rows), (stride,), (padding,), (dilation,), channels)


def over(
    x: Node,
    weight: Node,
    strides: Sequence[int],
    paddings: Sequence[Padding],
    dilations: Sequence[int],
    groups: int,
) -> Node:
    """Convolve over one to three axes, with leading axes of one value for the missing ones."""
    rank = len(x.spec.shape) - 2
    for name, values in (("strides", strides), ("paddings", paddings), ("dilations", dilations)):
        require(len(values) == rank, ShapeError, f"convolve: {len(values)} {name}, needs {rank}")
    require_paddings(paddings)
    missing = 3 - rank
    y = convolve(
        with_axes(x, missing),
        with_axes(weight, missing),
        strides=(*(1,) * missing, *strides),
        paddings=(*(0,) * missing, *paddings),
        dilations=(*(1,) * missing, *dilations),
        groups=groups,
    )
    return without_axes(y, missing)


def without_axes(y: Node, missing: int) -> Node:
    """View a node without the `missing` axes of size 1 that follow its first axis."""
    return make_view(y, Spec.dense((y.spec.shape[0], *y.spec.shape[1 + missing :]), F32))


def with_axes(node: Node, missing: int) -> Node:
    """View a node with `missing` axes of size 1 inserted after its first axis."""
    spec, ones = node.spec, (1,) * missing
    shape = (spec.shape[0], *ones, *spec.shape[1:])
    strides = (spec.strides[0], *(0,) * missing, *spec.strides[1:])
    return make_view(node, Spec(shape, spec.dtype, strides, spec.offset))


def _channels_last(node: Node) -> Node:
    """Return the node with channels in whole vectors of four, as a copy if necessary."""
    spec = node.spec
    whole = all(n % 4 == 0 for n in (spec.offset, *spec.strides[:3]))
    return node if (spec.strides[3] == 1 and whole) or node.builder is None else contiguous(node)


def apart(x: Array, spread: Sequence[int]) -> Array:
    """Put zeros between values along the axes between first and last."""
    shape = [(n - 1) * s + 1 if n else 0 for n, s in zip(x.shape[1:-1], spread, strict=True)]
    wide = np.zeros((len(x), *shape, x.shape[-1]), x.dtype)
    wide[:, *(slice(None, None, s) for s in spread)] = x
    return wide


def padded_by(x: Array, paddings: Sequence[Padding]) -> Array:
    """Put zeros around the axes between first and last; negative padding cuts values off."""
    sides = padded_sides(paddings)
    padded = np.pad(x, [(0, 0), *[(max(a, 0), max(b, 0)) for a, b in sides], (0, 0)])
    extents = padded.shape[1:-1]
    kept = (slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(extents, sides, strict=True))
    return padded[:, *kept]
