"""Row normalisations: rms_norm, layer_norm, softmax. A row is the last axis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import (
    FLOATS,
    grid_for,
    pad_to_4d,
    require,
    require_dtype,
    require_rank,
    row_count,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array


def _require_row(name: str, operand: str, vector: Node | None, x: Node) -> None:
    if vector is not None:
        require(
            vector.spec.shape == x.spec.shape[-1:],
            ShapeError,
            f"{name}: {operand} is {vector.spec.shape}, rows of x have {x.spec.shape[-1]} values",
        )
        require_dtype(name, operand, vector, FLOATS)


def _rows(name: str, x: Node) -> Node:
    require_rank(name, "x", x, 1)
    require_dtype(name, "x", x, FLOATS)
    return x


def reducing_rows(launch: Launch, way: str) -> Launch:
    """Return a launch whose threads reduce a row together, by the module ``lib/reduce/row_WAY``."""
    return replace(launch, choices={**launch.choices, "row_reduce": way})


def in_vec4s(cols: int, *operands: Node) -> bool:
    """Return whether rows, and vectors of their length, are whole vectors of four."""
    return cols % 4 == 0 and all(node.spec.offset % 4 == 0 for node in operands)


@op(dense=("weight",), trusted=True)
def rms_norm(x: Node, weight: Node | None = None, *, eps: float) -> Launch:
    """Scale each row to unit mean square, then by `weight`.

    Source: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.

    Parameters
    ----------
    x : (..., cols)
        f32, f16 or bf16; rows may be strided, values of a row are neighbours.
    weight : (cols,) or None
    eps : float
        Added to the mean square.

    Returns
    -------
    Tensor of the shape of `x`, f32.

    Raises
    ------
    ShapeError
        `weight` is not as long as a row, or the values of a row are not neighbours.
    """
    _rows("rms_norm", x)
    _require_row("rms_norm", "weight", weight, x)
    require(
        x.spec.strides[-1] == 1 or x.spec.shape[-1] == 1,
        ShapeError,
        f"rms_norm: values of a row lie {x.spec.strides[-1]} apart, need 1; call contiguous()",
    )
    # A binding needs a buffer even if the kernel does not read it.
    rows, scale = row_count(x.spec), x if weight is None else weight
    # Every row must begin with a whole vector.
    aligned = all(stride % 4 == 0 for stride in x.spec.strides[:-1])
    return Launch(
        Spec.dense(x.spec.shape, F32),
        {"x": x, "weight": scale},
        groups=grid_for(rows),
        shader="ops/reduce/rms_norm_vec4"
        if aligned and in_vec4s(x.spec.shape[-1], x, scale)
        else "",
        params={
            "rows": rows,
            "cols": x.spec.shape[-1],
            "eps": eps,
            "addend_offset": 0,
            "x_shape": pad_to_4d(x.spec.shape, 1),
            "x_strides": pad_to_4d(x.spec.strides, 0),
        },
        choices={"WEIGHTED": weight is not None},
        work=2 * x.spec.nbytes,
    )


@rms_norm.reference
def rms_norm_reference(x: Array, weight: Array | None = None, *, eps: float) -> Array:
    """Scale rows to unit mean square."""
    # NumPy warns of a mean of no values.
    if not x.size:
        return x
    normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return normed if weight is None else normed * weight


@op(shader="ops/reduce/rms_norm", dense=("addend", "weight"), trusted=True)
def rms_norm_add(x: Node, addend: Node, weight: Node | None = None, *, eps: float) -> Launch:
    """Normalise rows as `rms_norm`, then add a residual, for models with norms after layers.

    Parameters
    ----------
    x, weight, eps
        See `rms_norm`.
    addend : (..., cols)
        f32.

    Returns
    -------
    Tensor of the shape of `x`, f32.

    Raises
    ------
    ShapeError
        `addend` has another shape than `x`, or as `rms_norm`.
    """
    launch = rms_norm.record(x, weight, eps=eps)
    require_dtype("rms_norm_add", "addend", addend, (F32,))
    require(
        addend.spec.shape == x.spec.shape and addend.spec.offset % 4 == 0,
        ShapeError,
        f"rms_norm_add: addend is {addend.spec.shape}, {addend.spec.offset} values on; needs "
        f"{x.spec.shape} from a multiple of 4 on",
    )
    vectors = "vec4" if launch.shader else "load"
    return replace(
        launch,
        operands={**launch.operands, "addend": addend},
        params={**launch.params, "addend_offset": addend.spec.offset},
        choices={**launch.choices, "ADDS": True, "addend": f"formats/{vectors}/f32"},
    )


@rms_norm_add.reference
def rms_norm_add_reference(
    x: Array, addend: Array, weight: Array | None = None, *, eps: float
) -> Array:
    """Normalise rows as `rms_norm`, then add a residual."""
    return rms_norm_reference(x, weight, eps=eps) + addend


@rms_norm_add.fuses("add")
def residual_behind_the_norm(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a norm with a residual added to it."""
    # Sums commute, so the norm may be either operand.
    for own, other in (("a", "b"), ("b", "a")):
        found = graph.single_use_producer(node.operands[own], "rms_norm")
        addend = node.operands[other]
        if found is None or not (found.spec.shape == addend.spec.shape == node.spec.shape):
            continue
        if addend.spec.dtype != F32 or not addend.spec.is_dense or addend.spec.offset % 4:
            continue
        weight = found.operands["weight"] if found.launch.choices["WEIGHTED"] else None
        return graph.call(rms_norm_add, found.operands["x"], addend, weight, **found.options)
    return None


@op(dense=("x", "weight", "bias"), trusted=True)
def layer_norm(
    x: Node, weight: Node | None = None, bias: Node | None = None, *, eps: float
) -> Launch:
    """Shift and scale each row to zero mean and unit variance, then by `weight` and `bias`.

    Source: Ba, Kiros & Hinton 2016, "Layer Normalization", eq. 4.

    Parameters
    ----------
    x : (..., cols)
        f32, f16 or bf16.
    weight, bias : (cols,) or None
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor of the shape of `x`, f32.
    """
    _rows("layer_norm", x)
    _require_row("layer_norm", "weight", weight, x)
    _require_row("layer_norm", "bias", bias, x)
    rows, cols = row_count(x.spec), x.spec.shape[-1]
    operands = {
        "x": x,
        "weight": x if weight is None else weight,
        "bias": x if bias is None else bias,
    }
    return Launch(
        Spec.dense(x.spec.shape, F32),
        operands,
        groups=grid_for(rows),
        shader="ops/reduce/layer_norm_vec4" if in_vec4s(cols, *operands.values()) else "",
        params={"rows": rows, "cols": cols, "eps": eps},
        choices={"WEIGHTED": weight is not None, "BIASED": bias is not None},
        work=2 * x.spec.nbytes,
    )


@layer_norm.reference
def layer_norm_reference(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float
) -> Array:
    """Shift and scale rows to zero mean and unit variance."""
    # NumPy warns of a mean of no values.
    if not x.size:
        return x
    centred = x - np.mean(x, axis=-1, keepdims=True)
    normed = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + np.float32(eps))
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


@op(dense=("x",), trusted=True)
def softmax(x: Node) -> Launch:
    """Divide the exponentials of each row by their sum.

    Parameters
    ----------
    x : (..., cols)
        f32, f16 or bf16.

    Returns
    -------
    Tensor of the shape of `x`, f32; rows sum to one.
    """
    _rows("softmax", x)
    rows, cols = row_count(x.spec), x.spec.shape[-1]
    return Launch(
        Spec.dense(x.spec.shape, F32),
        {"x": x},
        groups=grid_for(rows),
        shader="ops/reduce/softmax_vec4" if in_vec4s(cols, x) else "",
        params={"rows": rows, "cols": cols},
        work=2 * x.spec.nbytes,
    )


@softmax.reference
def softmax_reference(x: Array) -> Array:
    """Divide the exponentials of rows by their sums."""
    # Less the largest, so that nothing overflows.
    e = np.exp(x - np.max(x, axis=-1, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis=-1, keepdims=True)
