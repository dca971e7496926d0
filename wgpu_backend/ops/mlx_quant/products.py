"""Products with quantised arrays, and of matrices selected by ids: quantised_matmul, gather_mm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import F32, I32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec, broadcast
from wgpu_backend.ops.check import (
    FLOATS,
    ceil_div,
    grid_for,
    require,
    require_dtype,
    require_rank,
)
from wgpu_backend.ops.linear.linear import mulmat
from wgpu_backend.ops.mlx_quant.modes import Coding, get_coding, require_packed
from wgpu_backend.ops.mlx_quant.quantising import quantised_values, unpacked
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand

# Threads of a work group, and those that share a row.
WIDTH, LANES = 64, 8
# Rows of x from which on unpacking and a product of floats is faster.
WORTH_UNPACKING = 32
# Of a matrix that is unpacked for that: it takes memory while the graph runs.
LARGEST_NBYTES = 64 << 20


@op(dense=("x", "packed", "scales", "biases", "lhs", "rhs"), trusted=True)
def packed_matmul(
    x: Node,
    packed: Node,
    scales: Node,
    biases: Node | None,
    lhs: Node,
    rhs: Node,
    *,
    transpose: bool,
    group_size: int,
    bits: int,
    mode: str,
) -> Launch:
    """Multiply matrices by quantised ones, selected by ids; see `gather_qmm`.

    Parameters
    ----------
    x : (a, m, k)
        f32, f16 or bf16.
    packed : (b, n, k * bits // 32)
        u32; (b, k, n * bits // 32) without `transpose`.
    scales, biases : (b, n, k // group_size), or (b, k, n // group_size)
    lhs, rhs : (batch,), i32 or u32
        Matrices of `x` and of `packed`; ids beyond the last are the last.

    Returns
    -------
    (batch, m, n), f32
    """
    coding = Coding(mode, group_size, bits)
    (count, m, _), (matrices, rows, words) = x.spec.shape, packed.spec.shape
    values = words * 32 // bits
    n, k = (rows, values) if transpose else (values, rows)
    batch = lhs.spec.shape[0]
    # Small floats have scales alone.
    planes = {} if biases is None else {"biases": biases}
    launch = Launch(
        Spec.dense((batch, m, n), F32),
        {"x": x, "packed": packed, "scales": scales, **planes, "lhs": lhs, "rhs": rhs},
        params={
            "batch": batch,
            "m": m,
            "n": n,
            "k": k,
            "words": words,
            "groups": values // group_size,
            "lhs_count": count,
            "rhs_count": matrices,
            **({"biases_offset": 0} if biases is None else {}),
        },
        choices=coding.choices,
        work=batch * (packed.spec.nbytes // max(matrices, 1) + 2 * m * n * k),
    )
    return _by_rows(launch) if transpose else _by_columns(launch)


@packed_matmul.reference
def packed_matmul_reference(
    x: Array,
    packed: Array,
    scales: Array,
    biases: Array | None,
    lhs: Array,
    rhs: Array,
    *,
    transpose: bool,
    group_size: int,
    bits: int,
    mode: str,
) -> Array:
    """Multiply selected matrices by unpacked ones."""
    w = quantised_values(packed, scales, biases, group_size, bits, mode)
    return gathered_matmul_reference(x, np.swapaxes(w, -1, -2) if transpose else w, lhs, rhs)


def _by_rows(launch: Launch) -> Launch:
    """Return a launch whose lanes share a row of the quantised matrix, for several rows of x."""
    batch, m, n = launch.out.shape
    # Few sizes, so that few kernels are compiled.
    columns = 1 if m == 1 else 4 if m <= 4 else 8
    row_groups, column_groups = ceil_div(n, WIDTH // LANES), ceil_div(m, columns)
    return replace(
        launch,
        groups=grid_for(batch * row_groups * column_groups),
        params={**launch.params, "row_groups": row_groups, "column_groups": column_groups},
        choices={**launch.choices, "WG": WIDTH, "COLS": columns},
    )


def _by_columns(launch: Launch) -> Launch:
    """Return a launch whose threads make eight values of a row each."""
    threads = launch.out.size // 8
    return replace(
        launch,
        threads=threads,
        params={**launch.params, "count": threads},
        shader="ops/mlx_quant/packed_matmul_columns",
    )


@op(dense=("lhs", "rhs"), trusted=True)
def gathered_matmul(a: Node, b: Node, lhs: Node, rhs: Node) -> Launch:
    """Multiply matrices selected by ids; see `gather_mm`.

    Parameters
    ----------
    a : (.., m, k)
        f32, f16 or bf16, three axes of any strides.
    b : (.., k, n)
        f32, f16 or bf16, three axes of any strides.
    lhs, rhs : (batch,), i32 or u32
        Ids beyond the last are the last.

    Returns
    -------
    (batch, m, n), f32
    """
    (count, m, k), (matrices, _, n) = a.spec.shape, b.spec.shape
    out = Spec.dense((lhs.spec.shape[0], m, n), F32)
    return Launch(
        out,
        {"a": a, "b": b, "lhs": lhs, "rhs": rhs},
        threads=out.size,
        params={
            "count": out.size,
            "m": m,
            "n": n,
            "k": k,
            "lhs_count": count,
            "rhs_count": matrices,
            "a_steps": (*a.spec.strides, 0),
            "b_steps": (*b.spec.strides, 0),
        },
        work=2 * out.size * k,
    )


@gathered_matmul.reference
def gathered_matmul_reference(a: Array, b: Array, lhs: Array, rhs: Array) -> Array:
    """Multiply selected matrices."""
    # As the kernel does it: ids outside choose the last matrix, also negative ones.
    left, right = (ids.astype(np.uint32).clip(max=len(m) - 1) for ids, m in ((lhs, a), (rhs, b)))
    return np.matmul(a[left].astype(np.float32), b[right].astype(np.float32))


def quantised_matmul(
    x: Node,
    packed: Node,
    scales: Node,
    biases: Node | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
) -> Node:
    """Multiply by a quantised array, summing in f32.

    Parameters
    ----------
    x : (..., m, k) or (k,), f32, f16 or bf16
    packed : (..., n, k * bits // 32), u32; (..., k, n * bits // 32) without `transpose`
        Leading axes broadcast with those of `x`.
    scales, biases
        See `wgpu_backend.ops.mlx_quant.quantising.dequantised_array`.
    transpose : bool
        ``x @ w.T``, else ``x @ w``.
    mode : str
        ``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``.

    Returns
    -------
    (..., m, n), f32

    Raises
    ------
    OptionError, DTypeError, ShapeError
        There is no such mode, planes do not belong together, or inner extents differ.
    """
    require_rank("quantised_matmul", "x", x, 1, 8)
    coding = _check_operands(
        "quantised_matmul", x, packed, scales, biases, transpose, group_size, bits, mode
    )
    if len(packed.spec.shape) == 2:
        return _with_one(x, packed, scales, biases, transpose, coding)
    require_rank("quantised_matmul", "x", x, 2, 8)
    left, right = (Spec.dense(node.spec.shape[:-2], F32) for node in (x, packed))
    batch = broadcast("quantised_matmul", left, right)
    lhs, rhs = (_broadcast_ids(x, spec.shape, batch) for spec in (left, right))
    return gather_qmm(x, packed, scales, biases, lhs, rhs, transpose, *coding[1:], mode)


def _check_operands(
    name: str,
    x: Node,
    packed: Node,
    scales: Node,
    biases: Node | None,
    transpose: bool,
    group_size: int | None,
    bits: int | None,
    mode: str,
) -> Coding:
    """Check the operands, and return the array's coding."""
    require_dtype(name, "x", x, FLOATS)
    coding = get_coding(name, mode, group_size, bits)
    values = require_packed(name, packed, scales, biases, coding)
    inner = values if transpose else packed.spec.shape[-2]
    require(
        x.spec.shape[-1] == inner,
        ShapeError,
        f"{name}: rows of x have {x.spec.shape[-1]} values, w needs {inner}",
    )
    return coding


def _with_one(
    x: Node, packed: Node, scales: Node, biases: Node | None, transpose: bool, coding: Coding
) -> Node:
    """Multiply all rows of x by one matrix."""
    *batch, k = x.spec.shape
    rows = math.prod(batch)
    n = scales.spec.shape[-1] * coding.group_size if not transpose else packed.spec.shape[0]
    # Codes would be unpacked again for each eight rows of x.
    if transpose and rows >= WORTH_UNPACKING and 4 * n * k <= LARGEST_NBYTES:
        matrix = unpacked(packed, scales, biases, **coding._asdict())
        return reshape_node(mulmat(matrix, reshape_node(x, (rows, k))), (*batch, n))
    first = _broadcast_ids(x, (), ())
    planes = (packed, scales, biases)
    y = _products(reshape_node(x, (1, rows, k)), planes, first, first, transpose, coding)
    return reshape_node(y, (*batch, n))


def _products(
    x: Node,
    planes: tuple[Node, Node, Node | None],
    lhs: Node,
    rhs: Node,
    transpose: bool,
    coding: Coding,
) -> Node:
    """Multiply matrices selected by ids, (batch, m, n)."""
    packed, scales, biases = planes
    return packed_matmul(
        _as_matrices(x),
        _as_matrices(packed),
        _as_matrices(scales),
        None if biases is None else _as_matrices(biases),
        lhs,
        rhs,
        transpose=transpose,
        **coding._asdict(),
    )


def _as_matrices(plane: Node) -> Node:
    """Merge the leading axes into one."""
    *_, rows, cols = plane.spec.shape
    return reshape_node(plane, (plane.spec.size // max(rows * cols, 1), rows, cols))


def _broadcast_ids(other: Node, batch: Shape, want: Shape) -> Node:
    """Return the numbers of a batch's matrices, in broadcast order."""
    assert other.builder is not None
    ids = np.arange(math.prod(batch), dtype=np.int32).reshape(batch)
    wide = np.ascontiguousarray(np.broadcast_to(ids, want)).reshape(-1)
    return other.builder.constant(wide.tobytes(), I32, wide.shape)


def gather_mm(a: Node, b: Node, lhs: Node | None = None, rhs: Node | None = None) -> Node:
    """Multiply matrices that ids select from two batches, summing in f32.

    Parameters
    ----------
    a : (..., m, k)
        f32, f16 or bf16.
    b : (..., k, n)
        f32, f16 or bf16.
    lhs, rhs : (...), i32 or u32, or None
        Which matrix of `a` and of `b`, their leading axes counted as one; both broadcast. None
        takes all in their order. Ids beyond the last are the last.

    Returns
    -------
    (..., m, n), f32
        Leading axes are those of the ids.

    Raises
    ------
    ShapeError
        Inner extents differ, or ids do not broadcast.
    """
    for name, node in (("a", a), ("b", b)):
        require_rank("gather_mm", name, node, 2, 8)
        require_dtype("gather_mm", name, node, FLOATS)
    k, other = a.spec.shape[-1], b.spec.shape[-2]
    require(k == other, ShapeError, f"gather_mm: rows of a have {k} values, columns of b {other}")
    batch, left, right = _chosen("gather_mm", a, b, lhs, rhs)
    y = gathered_matmul(_as_matrices(a), _as_matrices(b), left, right)
    return reshape_node(y, (*batch, a.spec.shape[-2], b.spec.shape[-1]))


def gather_qmm(
    x: Node,
    packed: Node,
    scales: Node,
    biases: Node | None = None,
    lhs: Node | None = None,
    rhs: Node | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
) -> Node:
    """Multiply matrices by quantised ones, selected by ids, summing in f32.

    Parameters
    ----------
    x : (..., m, k)
        f32, f16 or bf16.
    packed, scales, biases, transpose, group_size, bits, mode
        See `quantised_matmul`.
    lhs, rhs
        See `gather_mm`: matrices of `x` and of `packed`.

    Returns
    -------
    (..., m, n), f32
        Leading axes are those of the ids.

    Raises
    ------
    OptionError, DTypeError, ShapeError
        As `quantised_matmul`, or ids do not broadcast.
    """
    require_rank("gather_qmm", "x", x, 2, 8)
    coding = _check_operands(
        "gather_qmm", x, packed, scales, biases, transpose, group_size, bits, mode
    )
    batch, left, right = _chosen("gather_qmm", x, packed, lhs, rhs)
    y = _products(x, (packed, scales, biases), left, right, transpose, coding)
    return reshape_node(y, (*batch, *y.spec.shape[1:]))


def _chosen(
    name: str, a: Node, b: Node, lhs: Node | None, rhs: Node | None
) -> tuple[Sequence[int], Node, Node]:
    """Return the leading axes of the result, and the ids of both sides as one row each."""
    given: list[Node] = []
    for label, ids, matrices in (("lhs", lhs, a), ("rhs", rhs, b)):
        shape = matrices.spec.shape[:-2]
        require(
            matrices.spec.size > 0, ShapeError, f"{name}: {label} chooses from {shape}, none there"
        )
        if ids is not None:
            require_dtype(name, label, ids, (I32, U32))
        given.append(reshape_node(_broadcast_ids(a, shape, shape), shape) if ids is None else ids)
    batch = broadcast(name, given[0].spec, given[1].spec)
    left, right = (reshape_node(expand(ids, batch), (math.prod(batch),)) for ids in given)
    return batch, left, right
