"""Group normalisation with channels last: statistics over positions and a group's channels.

An image may be one group of millions of values, so moments are computed in parts: of each channel
over some positions, which neighbours in storage read together; then those of a group are merged.
"""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, extents
from wgpu_backend.ops.check import FLOATS, ceil_div, grid_for, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import in_vec4s
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.shapes import reshape_node

# Positions of which one thread takes the moments.
LEAST_PART, MOST_PART = 16, 256
# Parts of an image at least, unless they would become too short.
PARTS = 64


@op(dense=("x",), trusted=True)
def channel_moments(x: Node, *, part: int) -> Launch:
    """Compute mean and sum of squared deviations of each channel over parts of the positions.

    Source: Welford 1962, "Note on a method for calculating corrected sums of squares and products".

    Parameters
    ----------
    x : (n, positions, channels)
        f32, f16 or bf16.
    part : int
        Positions of a part; the last may have fewer.

    Returns
    -------
    (n, parts, channels, 2), f32
    """
    batch, positions, channels = x.spec.shape
    parts = ceil_div(positions, part)
    vector = in_vec4s(channels, x)
    blocks = channels // 4 if vector else channels
    return Launch(
        Spec.dense((batch, parts, channels, 2), F32),
        {"x": x, "vec4s": x},
        threads=batch * parts * blocks,
        params={
            "count": batch * parts * blocks,
            "parts": parts,
            "part": part,
            "positions": positions,
            "channels": channels,
            "blocks": blocks,
        },
        choices={"VECTOR": vector},
        work=x.spec.nbytes,
    )


@channel_moments.reference
def channel_moments_reference(x: Array, *, part: int) -> Array:
    """Compute mean and sum of squared deviations of each channel, part by part."""
    batch, positions, channels = x.shape
    found = np.zeros((batch, -(-positions // part), channels, 2), np.float32)
    for i, start in enumerate(range(0, positions, part)):
        values = x[:, start : start + part].astype(np.float32)
        mean = values.mean(axis=1)
        found[:, i, :, 0] = mean
        # Deviations from the part's own mean keep digits that sums of squares would lose.
        found[:, i, :, 1] = ((values - mean[:, None]) ** 2).sum(axis=1)
    return found


@op(dense=("moments",), trusted=True)
def group_moments(moments: Node, *, groups: int, positions: int, part: int, eps: float) -> Launch:
    """Compute mean and inverse standard deviation of each group, from `channel_moments`.

    Source: Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
    sample variances".

    Parameters
    ----------
    moments : (n, parts, channels, 2)
        f32.
    groups : int
        Divides channels.
    positions, part : int
        What the moments were taken over.
    eps : float
        Added to the variance.

    Returns
    -------
    (n, groups, 2), f32
    """
    batch, parts, channels, _ = moments.spec.shape
    width = channels // groups
    return Launch(
        Spec.dense((batch, groups, 2), F32),
        {"moments": moments},
        groups=grid_for(batch * groups),
        params={
            "rows": batch * groups,
            "groups": groups,
            "width": width,
            "channels": channels,
            "parts": parts,
            "part": part,
            "positions": positions,
            "values": float(positions * width),
            "eps": eps,
        },
        work=moments.spec.nbytes,
    )


@group_moments.reference
def group_moments_reference(
    moments: Array, *, groups: int, positions: int, part: int, eps: float
) -> Array:
    """Merge the moments of all parts of a group's channels."""
    batch, parts, channels, _ = moments.shape
    # The last part may be shorter.
    counts = np.array([min(part, positions - i * part) for i in range(parts)], np.float32)
    shape = (batch, parts, groups, channels // groups)
    means, squares = (moments[..., i].reshape(shape) for i in (0, 1))
    weights, count = counts[:, None, None], np.float32(positions * (channels // groups))
    mean = (means * weights).sum(axis=(1, 3)) / count
    # Chan et al. 1983: merging moments keeps digits that a sum of squares less a squared mean would
    # lose.
    apart = means - mean[:, None, :, None]
    variance = (squares + weights * apart**2).sum(axis=(1, 3)) / count
    return np.stack([mean, 1 / np.sqrt(variance + np.float32(eps))], axis=-1)


@op(dense=("x", "moments", "weight", "bias"), trusted=True)
def group_normed(
    x: Node,
    moments: Node,
    weight: Node | None = None,
    bias: Node | None = None,
    *,
    silu: bool = False,
) -> Launch:
    """Shift and scale groups of channels by their `group_moments`, then by `weight` and `bias`.

    Parameters
    ----------
    x : (n, ..., channels)
        f32, f16 or bf16.
    moments : (n, groups, 2)
        f32.
    weight, bias : (channels,)
        f32, f16 or bf16, or None.
    silu : bool
        Of the result: times its sigmoid.

    Returns
    -------
    Tensor of the shape of `x`, f32.
    """
    batch, channels = x.spec.shape[0], x.spec.shape[-1]
    operands = {
        "x": x,
        "vec4s": x,
        "moments": moments,
        "weight": x if weight is None else weight,
        "bias": x if bias is None else bias,
    }
    vector = in_vec4s(channels, x)
    threads = x.spec.size // 4 if vector else x.spec.size
    return Launch(
        Spec.dense(x.spec.shape, F32),
        operands,
        threads=threads,
        params={
            "count": threads,
            "picture": x.spec.size // max(batch, 1),
            "channels": channels,
            "groups": moments.spec.shape[1],
            "width": channels // moments.spec.shape[1],
        },
        choices={
            "VECTOR": vector,
            "WEIGHTED": weight is not None,
            "BIASED": bias is not None,
            "SILU": silu,
        },
        work=2 * x.spec.nbytes,
    )


@group_normed.reference
def group_normed_reference(
    x: Array,
    moments: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    silu: bool = False,
) -> Array:
    """Shift and scale each channel by the moments of its group."""
    ones = (1,) * (x.ndim - 2)
    of_channels = np.repeat(moments, x.shape[-1] // moments.shape[1], axis=1)
    mean, inverse = (of_channels[..., i].reshape(len(x), *ones, x.shape[-1]) for i in (0, 1))
    y = (x - mean) * inverse
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y / (1 + np.exp(-y)) if silu else y


@group_normed.fuses("silu", name="group_norm_silu")
def silu_behind_the_norm(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a group norm with the silu of its result, if nothing else reads it."""
    found = graph.single_use_producer(node.operands["x"], "group_normed")
    if found is None or found.launch.choices["SILU"] or node.operands["x"].spec != found.spec:
        return None
    given = {
        name: found.operands[name] if found.launch.choices[choice] else None
        for name, choice in (("weight", "WEIGHTED"), ("bias", "BIASED"))
    }
    return graph.call(
        group_normed, found.operands["x"], found.operands["moments"], **given, silu=True
    )


def group_norm(
    x: Node,
    groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """Shift and scale each group of channels to zero mean and unit variance.

    Source: Wu & He 2018, "Group Normalization", eq. 2.

    Parameters
    ----------
    x : (n, ..., channels)
        f32, f16 or bf16.
    groups : int
        Divides channels; neighbours are of one group.
    weight, bias : (channels,), f32, f16 or bf16, or None
        Factor of each channel, and what is added then.
    eps : float
        Added to the variance, the population's.

    Returns
    -------
    Tensor of the shape of `x`, f32.

    Raises
    ------
    ShapeError
        `groups` does not divide channels, or `weight` or `bias` has another length.
    """
    require_rank("group_norm", "x", x, 2, 8)
    require_dtype("group_norm", "x", x, FLOATS)
    (groups,) = extents("group_norm: groups", (groups,))
    batch, *middle, channels = x.spec.shape
    require(
        groups > 0 and channels % groups == 0,
        ShapeError,
        f"group_norm: {channels} channels, not a multiple of {groups} groups",
    )
    for name, vector in (("weight", weight), ("bias", bias)):
        _require_channels(name, vector, channels)
    positions = math.prod(middle)
    pictures = reshape_node(x, (batch, positions, channels))
    part = min(max(ceil_div(positions, PARTS), LEAST_PART), MOST_PART)
    moments = group_moments(
        channel_moments(pictures, part=part),
        groups=groups,
        positions=positions,
        part=part,
        eps=eps,
    )
    return group_normed(reshape_node(pictures, x.spec.shape), moments, weight, bias)


def _require_channels(name: str, vector: Node | None, channels: int) -> None:
    if vector is None:
        return
    require_dtype("group_norm", name, vector, FLOATS)
    require(
        vector.spec.shape == (channels,),
        ShapeError,
        f"group_norm: {name} is {vector.spec.shape}, x has {channels} channels",
    )
