"""Products with weights: `linear`, with the steps before and after its sums as data.

`mulmat` and `mulmat_full_prec` are the methods that the interface has; fusion rules write prologues
and epilogues onto the node that they make. `matmul_strided` takes what no weight kernel does: plain
types of any strides, sizes and batches, one thread per value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import ALL, BF16, F16, F32, U32, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import (
    FLOATS,
    pad_to_4d,
    require,
    require_dtype,
    require_rank,
    require_row,
    require_tensor,
)
from wgpu_backend.ops.elementwise.arithmetic import add
from wgpu_backend.ops.linear.attributes import (
    SUMS,
    VALUES,
    Attributes,
    Epilogue,
    Form,
    Precision,
    Prologue,
    get_attributes,
)
from wgpu_backend.ops.linear.columns import check_columns, column_snippet, require_rows
from wgpu_backend.ops.linear.f16_groups import (
    BESIDE_NIBBLES,
    NIBBLES,
    f16_activations_reference,
    f16_columns_values,
    f16_norm_factor,
    f16_row_values,
    f16_spec,
    f16_values,
    f16_weighted_reference,
)
from wgpu_backend.ops.linear.f16_groups import WEIGHTS as F16_WEIGHTS
from wgpu_backend.ops.linear.gates import join_halves
from wgpu_backend.ops.linear.normed import (
    GROUP,
    apply_norm_factor,
    norm_weighted_reference,
    weighted_spec,
)
from wgpu_backend.ops.linear.portable import select_portable
from wgpu_backend.ops.linear.q8 import FORMATS, rounded_spec
from wgpu_backend.ops.linear.q8_rounding import (
    from_planes,
    q8_activations_reference,
    q8_norm_factor,
    q8_values,
    q8_weighted_reference,
)
from wgpu_backend.ops.linear.q16 import (
    q16_activations_reference,
    q16_spec,
    q16_values,
    q16_weighted_reference,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array, get_reference
from wgpu_backend.ops.shape.shaping import pad

# Rows that are shorter, or matrices that are smaller, are not worth a copy that fills groups.
SHORTEST_FILLED = 8 * GROUP
FEWEST_FILLED = 16
WEIGHTS = tuple(d for d in ALL if d in FLOATS or d.quantised)
WEIGHTS_OF: dict[Form, tuple[DType, ...]] = {
    "values": WEIGHTS,
    "q8": FORMATS,
    "q8_pair": FORMATS,
    "q16": FORMATS,
    "f16": F16_WEIGHTS,
    "f16_nibbles": (*NIBBLES, *BESIDE_NIBBLES),
    "f16_rows": tuple(dtype for dtype in WEIGHTS if dtype != F32),
    "f16_columns": (*F16_WEIGHTS, BF16),
}
# The layout of rounded results, by form.
SPECS: Mapping[Form, Callable[[Shape, int, bool], Spec]] = {
    "q8": rounded_spec,
    "q16": lambda rows, groups, _: q16_spec(rows, groups),
    "f16": f16_spec,
    "f16_nibbles": f16_spec,
}


@op(select=select_portable, dense=("x", "addend", "scale", "gain"), trusted=True)
def linear(
    weight: Node,
    x: Node,
    addend: Node | None = None,
    scale: Node | None = None,
    total: Node | None = None,
    gain: Node | None = None,
    *,
    prologue: Prologue = VALUES,
    epilogue: Epilogue = SUMS,
    precision: Precision = "default",
) -> Launch:
    """Compute ``x @ weight.T``, with a prologue before the sums and an epilogue after them.

    Parameters
    ----------
    weight : (m, k), dense, any float or block format; k a multiple of 32
        Where rows of `x` are rounded, of a format of `WEIGHTS_OF`. With an activation (2 m, k),
        rows in one binding of the device, see `fits_gated`.
    x : (..., k), f32
        In eight bits (..., k / 32, 12) or (3, ..., k / 32, 4), u32, from `q8_activations`; of pairs
        (..., 2, k / 32, 12) or (3, ..., k / 16, 4), from `q8_pair` or `rms_norm_pair`. In sixteen
        bits (5, ..., k / 32, 4), from `q16_activations`. In f16 by
        groups (5, ..., k / 32, 4), of a weight in f16 (..., k / 32, 20), from `f16_activations`;
        by whole rows (..., k + 8), f16, from `f16_rows`; as `f16_columns` gives them.
        Rows that lack the factor of a norm come from `norm_weighted`, k + squares long,
        `q8_weighted`, `q16_weighted` or `f16_weighted`.
    addend : (m,) or (..., m), f32, or None
        A bias, or a residual.
    scale : (m,)
        f32, or None.
    total : (..., m), f32, dense, or None; written
        See `Epilogue.norm`.
    gain : (k,), f32, or None
        See `Prologue.norm`.
    precision : str
        See `Attributes`.

    Returns
    -------
    (..., m), f32; with a norm after it (..., m + squares); rounded (..., m / 32, 12), u32, in f16
    (..., m / 32, 20), or both in planes; in sixteen bits (5, ..., m / 32, 4).

    Raises
    ------
    ShapeError
        Row lengths differ, operands do not fit the result, a weight has no halves or not whole
        groups.
    DTypeError
        A weight has no such form as `x` has, or an operand another type.
    DeviceError
        When it is run: rows of a weight that are joined, or rounded together, lie in several
        bindings; or there are too few of these for a norm after a format of many planes.
    """
    launch = _product(weight, x, Attributes(prologue, epilogue, precision))
    if prologue.norm:
        launch = _behind_norm(launch, gain)
    if epilogue.activation is not None:
        launch = join_halves("linear", launch, epilogue.activation)
    if addend is not None:
        launch = _add(launch, addend)
    if epilogue.norm:
        launch = _with_norm(launch, scale, total)
    return _round_result(launch) if epilogue.is_rounded else _append_squares(launch)


@linear.reference
def linear_reference(
    weight: Array,
    x: Array,
    addend: Array | None = None,
    scale: Array | None = None,
    total: Array | None = None,
    gain: Array | None = None,
    *,
    prologue: Prologue = VALUES,
    epilogue: Epilogue = SUMS,
    precision: Precision = "default",
) -> Array:
    """Decode `x` by the prologue, multiply, and apply the epilogue."""
    rows = _rows(x, weight.shape[-1], prologue) if gain is None else _norm(x, gain, prologue)
    # The parts of a row add up to it.
    y = np.matmul(rows.sum(axis=-2) if prologue.parts > 1 else rows, weight.T)
    if epilogue.activation is not None:
        # The rows of the gate come first, as models store them.
        gate, up = np.split(y, 2, axis=-1)
        y = get_reference(epilogue.activation)(gate) * up
    y = y if addend is None else y + addend
    return _apply_epilogue(y, scale, total, epilogue)


def _product(weight: Node, x: Node, attributes: Attributes) -> Launch:
    """Return the launch of ``x @ weight.T``, with no epilogue yet."""
    require_rank("linear", "weight", weight, 2, 2)
    prologue = attributes.prologue
    values = prologue.form == "values"
    require_dtype("linear", "weight", weight, WEIGHTS_OF[prologue.form])
    in_rows = prologue.form == "f16_rows"
    require_dtype("linear", "x", x, (F32,) if values else (F16,) if in_rows else (U32,))
    m, k = weight.spec.shape
    require(
        weight.spec.is_dense and weight.spec.offset % GROUP == 0 and k % GROUP == 0,
        ShapeError,
        f"linear: weight is {weight.spec.shape} of strides {weight.spec.strides}, needs one dense "
        f"matrix with whole groups of {GROUP}",
    )
    columns = check_columns(x, weight, prologue)
    n = math.prod(columns) * prologue.parts
    # The scale and sums of a group are read as f32, its values as f16. A binding has one element
    # type, so the buffer is bound twice.
    apart = prologue.in_f16 or prologue.form == "f16_columns"
    tails = {"tails": x} if apart else {}
    return Launch(
        Spec.dense((*columns, m), F32),
        {"weights": weight, "x": x, "addend": x, **tails},
        params={
            "m": m,
            "n": n,
            "groups": k // GROUP,
            "addend_stride": 0,
            "scale_offset": 0,
            "gain_offset": 0,
            "eps": prologue.eps or 0.0,
        },
        choices={"addend": "formats/load/f32", "x": column_snippet(x)}
        if prologue.in_bytes
        else {"addend": "formats/load/f32"},
        work=weight.spec.nbytes + 2 * m * n * k,
        attributes=attributes,
    )


def _add(launch: Launch, addend: Node) -> Launch:
    """Return a launch that adds a row, or a tensor of the result's shape, to the product."""
    m, shape = launch.out.shape[-1], addend.spec.shape
    require(
        shape in ((m,), launch.out.shape),
        ShapeError,
        f"linear: addend is {shape}, needs {(m,)} or {launch.out.shape}",
    )
    require_dtype("linear", "addend", addend, (F32,))
    return replace(
        launch,
        operands={**launch.operands, "addend": addend},
        params={**launch.params, "addend_stride": 0 if shape == (m,) else m},
        choices={**launch.choices, "ADDS": True},
    )


def _behind_norm(launch: Launch, gain: Node | None) -> Launch:
    """Return a launch that also normalises its rows, with this norm weight."""
    require_tensor("linear", "gain", gain)
    assert gain is not None
    prologue = get_attributes(launch).prologue
    require(
        prologue.form == "values" and prologue.eps is not None,
        ShapeError,
        f"linear: a norm of rows in {prologue.form} with eps {prologue.eps}, needs values and eps",
    )
    require_row("linear", "gain", gain, launch.operands["x"].spec.shape[-1])
    require_dtype("linear", "gain", gain, (F32,))
    return replace(
        launch,
        operands={**launch.operands, "gain": gain},
        params={**launch.params, "gain_offset": gain.spec.offset},
    )


def _with_norm(launch: Launch, scale: Node | None, total: Node | None) -> Launch:
    """Return a launch that also stores its sums, weighted for the norm that follows."""
    require_tensor("linear", "scale", scale)
    require_tensor("linear", "total", total)
    assert scale is not None
    assert total is not None
    require_row("linear", "scale", scale, launch.out.shape[-1])
    require_dtype("linear", "total", total, (F32,))
    spec, like = total.spec, launch.out
    require(
        spec.shape == like.shape and spec.is_dense and not spec.offset,
        ShapeError,
        f"linear: total is {spec.shape} of strides {spec.strides}, needs a dense {like.shape}",
    )
    return replace(
        launch,
        operands={**launch.operands, "scale": scale, "total": total},
        params={**launch.params, "scale_offset": scale.spec.offset},
        writes=("total",),
    )


def _append_squares(launch: Launch) -> Launch:
    """Return a launch whose rows end in sums of squares, if a norm follows."""
    norm = get_attributes(launch).epilogue.norm
    return replace(launch, out=weighted_spec(launch.out)) if norm else launch


def _round_result(launch: Launch) -> Launch:
    """Return a launch whose result is rounded by groups."""
    *rows, m = launch.out.shape
    require(m % GROUP == 0, ShapeError, f"linear: {m} rows of results, needs a multiple of {GROUP}")
    epilogue = get_attributes(launch).epilogue
    require(
        epilogue.form in SPECS,
        ShapeError,
        f"linear: results in {epilogue.form}, needs one of {', '.join(SPECS)}",
    )
    return replace(launch, out=SPECS[epilogue.form]((*rows,), m // GROUP, epilogue.planar))


def mulmat(weight: Node, x: Node) -> Node:
    """Multiply rows of `x` with rows of `weight`, summing in f32.

    Parameters
    ----------
    weight : (..., m, k), any float or block format
        Leading axes divide those of `x`: one batch of weights serves several of `x`, as one head of
        keys serves several of queries.
    x : (..., n, k)
        f32, f16 or bf16.

    Returns
    -------
    (..., n, m), f32: ``x @ weight.T``.

    Raises
    ------
    ShapeError
        Row lengths differ, or leading axes do not divide.
    DTypeError
        An operand is of another type.
    """
    return _multiply(weight, x, "default")


def mulmat_full_prec(weight: Node, x: Node) -> Node:
    """Multiply as `mulmat`, without rounding activations: for logits.

    Parameters
    ----------
    weight, x
        See `mulmat`.

    Returns
    -------
    (..., n, m), f32
    """
    return _multiply(weight, x, "full")


def _multiply(weight: Node, x: Node, precision: Precision) -> Node:
    weight, x = _fill_groups(weight, x)
    if _in_groups(weight, x):
        return linear(weight, x, precision=precision)
    _require_operands("mulmat", weight, x)
    return matmul_strided(weight, x)


def _in_groups(weight: Node, x: object) -> bool:
    """Return whether a weight is one dense matrix of whole groups, and x has f32 rows for it."""
    if not isinstance(x, Node) or x.spec.dtype != F32:
        return False
    spec = weight.spec
    if len(spec.shape) != 2 or x.spec.shape[-1:] != spec.shape[1:]:
        return False
    # Kernels read whole groups, from a multiple of their size on.
    whole = spec.shape[1] % GROUP == 0 and spec.offset % GROUP == 0 and spec.is_dense
    return whole and (spec.dtype.quantised or spec.dtype in FLOATS)


def _fill_groups(weight: Node, x: Node) -> tuple[Node, Node]:
    """Pad long rows with zeros to whole groups, where the faster kernel is worth the copies.

    Vision towers have such rows: 4,304 values in SigLIP, 3,420 in Qwen2.5-VL. Other operands are
    returned as they are.
    """
    if not isinstance(x, Node) or x.builder is None or x.spec.dtype != F32:  # pyright: ignore[reportUnnecessaryIsInstance]
        return weight, x
    shape, rows = weight.spec.shape, x.spec.shape[:-1]
    plain = len(shape) == 2 and weight.spec.dtype in FLOATS and x.spec.shape[-1:] == shape[1:]
    more = -shape[-1] % GROUP if plain else 0
    few = plain and min(math.prod(rows), shape[0]) < FEWEST_FILLED
    if not more or few or shape[-1] < SHORTEST_FILLED:
        return weight, x
    # A weight has no builder, from which `pad` takes its own.
    own = x.builder.view(weight, weight.spec)
    return pad(own, 0, more), pad(x, *(0 for _ in rows), more)


def _require_operands(name: str, weight: Node, x: Node) -> None:
    """Refuse operands of the wrong type; weights in blocks are multiplied in whole groups only."""
    require_tensor(name, "x", x)
    require_rank(name, "weight", weight, 2)
    require_rank(name, "x", x, 1)
    require_dtype(name, "weight", weight, WEIGHTS)
    require_rows(name, x, weight.spec.shape[-1])
    if weight.spec.dtype.quantised:
        require_dtype(name, "x", x, (F32,))
        # Types fit, so what is wrong is the shape or the strides.
        raise ShapeError(
            f"{name}: a {weight.spec.dtype} weight is {weight.spec.shape} of strides "
            f"{weight.spec.strides}, needs one dense matrix"
        )
    require_dtype(name, "x", x, FLOATS)


def linear_layer(weight: Node, x: Node, addend: Node | None) -> Node:
    """Compute ``x @ weight.T + addend``, in one op where the weight allows that.

    Parameters
    ----------
    weight, x
        See `mulmat`.
    addend : (m,) or (..., n, m), or None
    """
    if addend is None:
        return mulmat(weight, x)
    for name, node in (("x", x), ("addend", addend)):
        require_tensor("linear", name, node)
    # Empty for a vector, which `mulmat` then refuses by name.
    rows = weight.spec.shape[-2:-1]
    fits = addend.spec.shape in (rows, (*x.spec.shape[:-1], *rows))
    weight, x = _fill_groups(weight, x)
    if fits and addend.spec.dtype == F32 and _in_groups(weight, x):
        return linear(weight, x, addend)
    return add(mulmat(weight, x), addend)


def _rows(x: Array, k: int, prologue: Prologue) -> Array:
    """Decode rows to values, applying the norm's factor where they lack it."""
    if prologue.form == "values":
        return apply_norm_factor(x, k, prologue.eps)
    if prologue.in_f16:
        values = f16_values(x, prologue.form == "f16_nibbles")
        return values * f16_norm_factor(x, prologue.eps)
    if prologue.form == "f16_rows":
        return f16_row_values(x)
    if prologue.form == "f16_columns":
        return f16_columns_values(x, k)
    if prologue.form == "q16":
        return q16_values(x) * f16_norm_factor(x, prologue.eps)
    if prologue.form == "q8":
        return q8_values(x) * q8_norm_factor(x, prologue.eps)
    parts = from_planes(x)
    return q8_values(parts if x.shape[-1] == 12 else parts.reshape(*x.shape[1:-2], 2, -1, 12))


def _norm(x: Array, gain: Array, prologue: Prologue) -> Array:
    """Normalise rows."""
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean + np.float32(prologue.eps or 0)) * gain


def _apply_epilogue(
    y: Array, scale: Array | None, total: Array | None, epilogue: Epilogue
) -> Array:
    """Return what a product stores of its sums."""
    if not epilogue.norm:
        return _rounded_reference(y, None, epilogue) if epilogue.is_rounded else y
    assert total is not None
    assert scale is not None
    # The epilogue writes the residual, too: later layers read it.
    total[...] = y
    return (
        _rounded_reference(total, scale, epilogue)
        if epilogue.is_rounded
        else norm_weighted_reference(total, scale)
    )


def _rounded_reference(y: Array, scale: Array | None, epilogue: Epilogue) -> Array:
    """Round sums by groups, in planes or not."""
    if epilogue.form == "q8":
        options = {"planar": epilogue.planar}
        return (
            q8_activations_reference(y, **options)
            if scale is None
            else q8_weighted_reference(y, scale, **options)
        )
    if epilogue.form == "q16":
        return q16_activations_reference(y) if scale is None else q16_weighted_reference(y, scale)
    options = {"planar": epilogue.planar, "nibbles": epilogue.form == "f16_nibbles"}
    if scale is None:
        return f16_activations_reference(y, **options)
    return f16_weighted_reference(y, scale, **options)


@op(shader="ops/linear/matmul", trusted=True)
def matmul_strided(a: Node, x: Node) -> Launch:
    """Multiply rows of `x` with rows of `a`, of any length and strides.

    Parameters
    ----------
    a : (..., m, k), f32, f16 or bf16
        Leading axes divide those of `x`.
    x : (..., n, k)
        f32, f16 or bf16.

    Returns
    -------
    (..., n, m), f32: ``x @ a.T``.

    Raises
    ------
    ShapeError
        Row lengths differ, or leading axes do not divide.
    """
    require_rank("mulmat", "weight", a, 2)
    require_rank("mulmat", "x", x, 1)
    require_dtype("mulmat", "weight", a, FLOATS)
    require_dtype("mulmat", "x", x, FLOATS)
    m, k = a.spec.shape[-2:]
    require(
        x.spec.shape[-1] == k,
        ShapeError,
        f"mulmat: rows of x have {x.spec.shape[-1]} values, rows of weight have {k}",
    )
    shape = x.spec.shape if len(x.spec.shape) > 1 else (1, *x.spec.shape)
    batch, repeats = _batches(a.spec.shape[:-2], shape[:-2])
    out = Spec.dense((*x.spec.shape[:-1], m), F32)
    return Launch(
        out,
        {"a": a, "x": x},
        threads=out.size,
        params={
            "size": out.size,
            "m": m,
            "n": shape[-2],
            "k": k,
            "batch": pad_to_4d((*batch, 1, 1), 1),
            "repeats": pad_to_4d((*repeats, 1, 1), 1),
            "a_strides": pad_to_4d(a.spec.strides, 0),
            "x_strides": pad_to_4d(x.spec.strides, 0),
        },
        work=2 * out.size * k,
    )


@matmul_strided.reference
def matmul_strided_reference(a: Array, x: Array) -> Array:
    """Return ``x @ a.T``, batches of `a` repeated to those of `x`."""
    batch = a.shape[:-2]
    for axis, wanted in zip(range(-3, -3 - len(batch), -1), reversed(x.shape[:-2]), strict=False):
        # Each batch several times in a row: a head of keys serves a group of heads of queries.
        a = np.repeat(a, wanted // a.shape[axis], axis=axis)
    return np.matmul(x, np.swapaxes(a, -1, -2)).reshape(*x.shape[:-1], a.shape[-2])


def _batches(a: Shape, x: Shape) -> tuple[Shape, Shape]:
    """Return the batch extents of x, and how often each batch of a repeats in it."""
    wide = (1,) * (2 - len(a)) + a, (1,) * (2 - len(x)) + x
    for have, want in zip(*wide, strict=True):
        require(
            have > 0 and want % have == 0,
            ShapeError,
            f"mulmat: weight has batch axes {a}, which do not divide those of x, {x}",
        )
    return wide[1], tuple(w // h for h, w in zip(*wide, strict=True))
