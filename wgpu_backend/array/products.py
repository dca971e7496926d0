"""Products of matrices, and einsum: sums of products by the names of axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from wgpu_backend.array.base import constant, wrap
from wgpu_backend.array.conversion import MOST_AXES, convert
from wgpu_backend.array.promotion import (
    apply_to_nodes,
    as_node,
    call_complex,
    is_complex,
    promote_operands,
)
from wgpu_backend.array.reductions import sum as summed
from wgpu_backend.array.types import FLOATING
from wgpu_backend.dtypes import COMPLEX64, F32, I32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Spec, broadcast, slice_axis
from wgpu_backend.ops.elementwise import arithmetic, bitwise
from wgpu_backend.ops.elementwise.launches import WIDE
from wgpu_backend.ops.linear import products
from wgpu_backend.ops.reduce import reduction
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import expand, make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

# Up to so many products of integers are computed one by one and added; more are computed by digits
# with the kernels of floats.
FEW = 1 << 16
# Bits of a digit: a product of two digits is exact in float32, with room for sums.
DIGIT = 8
# Products of two digits that float32 sums exactly: 256 * 255² < 2²⁴.
EXACT = 256


def matmul(a: Any, b: Any, /) -> Array:
    """Multiply matrices as ``numpy.matmul``; leading axes broadcast, sums are in float32.

    Parameters
    ----------
    a : (..., n, k) or (k,), any numbers
    b : (..., k, m) or (k,), any numbers

    Returns
    -------
    (..., n, m), of the type both are promoted to
        Of integers exact, modulo their range; large ones cost ten products of floats, those of 64
        bits 36.
    """
    left, right = promote_operands("matmul", a, b)
    kind = left.spec.dtype
    if not left.spec.shape or not right.spec.shape:
        raise ShapeError(f"matmul: {left.spec.shape} and {right.spec.shape}, needs axes")
    if kind in FLOATING:
        return wrap(convert(product(left, right), kind))
    if kind == COMPLEX64:
        return call_complex("matmul", wrap(left), wrap(right))
    # Products modulo 2³² are the same for signed and unsigned integers, and smaller types are cut
    # afterwards.
    word = kind if kind in WIDE else U32
    return wrap(convert(_whole(convert(left, word), convert(right, word)), kind))


def _whole(a: Node, b: Node) -> Node:
    """Multiply matrices of u32 modulo 2³², or of integers of 64 bits modulo 2⁶⁴."""
    rows = a if len(a.spec.shape) > 1 else reshape_node(a, (1, *a.spec.shape))
    cols = b if len(b.spec.shape) > 1 else reshape_node(b, (*b.spec.shape, 1))
    if rows.spec.shape[-1] != cols.spec.shape[-2]:
        raise ShapeError(
            f"matmul: a is {a.spec.shape}, b is {b.spec.shape}; rows of a have "
            f"{rows.spec.shape[-1]} values, columns of b have {cols.spec.shape[-2]}"
        )
    batch = broadcast("matmul", _leading(rows), _leading(cols))
    small = math.prod(batch) * rows.spec.size * cols.spec.shape[-1] <= FEW
    y = _pair_by_pair(rows, cols) if small else _by_digits(rows, cols)
    shape = list(y.spec.shape)
    if len(b.spec.shape) == 1:
        shape.pop(-1)
    if len(a.spec.shape) == 1:
        shape.pop(len(batch))
    return reshape_node(y, shape)


def _pair_by_pair(a: Node, b: Node) -> Node:
    from wgpu_backend.array.reductions import fold_axes

    left = reshape_node(a, (*a.spec.shape, 1))
    right = reshape_node(b, (*b.spec.shape[:-2], 1, *b.spec.shape[-2:]))
    pairs = apply_to_nodes(arithmetic.mul, "matmul", left, right)
    return fold_axes(reduction.sum, "matmul", pairs, -2, False)


def _by_digits(a: Node, b: Node) -> Node:
    """Multiply digit by digit, each exact in f32, and add the shifted products."""
    total: Node | None = None
    count = a.spec.dtype.block_nbytes
    for start in range(0, a.spec.shape[-1], EXACT):
        stop = min(start + EXACT, a.spec.shape[-1])
        left = _digits(make_view(a, slice_axis(a.spec, -1, start, stop)))
        right = _digits(make_view(b, slice_axis(b.spec, -2, start, stop)))
        for i in range(count):
            # Higher digits leave the range of the type.
            for j in range(count - i):
                part = convert(product(left[i], right[j]), a.spec.dtype)
                placed = _over_number(bitwise.left_shift, part, DIGIT * (i + j))
                total = (
                    placed
                    if total is None
                    else apply_to_nodes(arithmetic.add, "matmul", total, placed)
                )
    assert total is not None
    return total


def _digits(x: Node) -> list[Node]:
    count = x.spec.dtype.block_nbytes
    low = [_over_number(bitwise.right_shift, x, DIGIT * i) for i in range(count)]
    return [convert(_over_number(bitwise.bitwise_and, d, 255), F32) for d in low]


def _over_number(op: Any, x: Node, number: int) -> Node:
    session: Any = x.builder
    return apply_to_nodes(op, "matmul", x, constant(session, np.asarray(number), x.spec.dtype))


def product(a: Node, b: Node) -> Node:
    """Multiply nodes of floats with any number of leading axes, f32."""
    if max(len(a.spec.shape), len(b.spec.shape)) <= MOST_AXES:
        return products.matmul(a, b)
    batch = broadcast("matmul", _leading(a), _leading(b))
    count = math.prod(batch)
    rows = reshape_node(expand(a, (*batch, *a.spec.shape[-2:])), (count, *a.spec.shape[-2:]))
    cols = reshape_node(expand(b, (*batch, *b.spec.shape[-2:])), (count, *b.spec.shape[-2:]))
    y = products.matmul(rows, cols)
    return reshape_node(y, (*batch, *y.spec.shape[1:]))


def _leading(x: Node) -> Spec:
    if len(x.spec.shape) < 2:
        raise ShapeError(f"matmul: {x.spec.shape} with a batch, needs at least 2 axes")
    return Spec.dense(x.spec.shape[:-2], F32)


def addmm(c: Array, a: Array, b: Array, /, alpha: float = 1.0, beta: float = 1.0) -> Array:
    """Return ``beta * c + alpha * (a @ b)``."""
    y = matmul(a, b)
    y = y if alpha == 1 else y * alpha
    return y + (c if beta == 1 else c * beta)


def linear(x: Array, weight: Array, /, bias: Array | None = None) -> Array:
    """Return ``x @ weight + bias``, with the weight as (inputs, outputs)."""
    y = matmul(x, weight)
    return y if bias is None else y + bias


def outer(a: Array, b: Array, /) -> Array:
    """Multiply all pairs of values, (values of a, values of b)."""
    return a.reshape(-1, 1) * b.reshape(1, -1)


def inner(a: Array, b: Array, /) -> Array:
    """Sum products along the last axes of both."""
    if not a.ndim or not b.ndim:
        return a * b
    return tensordot(a, b, axes=([-1], [-1]))


def kron(a: Array, b: Array, /) -> Array:
    """Compute the Kronecker product: each value of `a` times all of `b`, in its place."""
    rank = max(a.ndim, b.ndim)
    own = [(1,) * (rank - x.ndim) + x.shape for x in (a, b)]
    left = a.reshape(*(n for extent in own[0] for n in (extent, 1)))
    right = b.reshape(*(n for extent in own[1] for n in (1, extent)))
    return (left * right).reshape(*(n * m for n, m in zip(*own, strict=True)))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Sum products along an axis of both; other axes broadcast.

    Of complex numbers, those of `x1` are conjugated.
    """
    from wgpu_backend.array.elementwise import conj
    from wgpu_backend.array.reductions import sum

    left, right = (as_node("vecdot", x) for x in (x1, x2))
    ends = [n.spec.shape[n.spec.axis(axis, "vecdot")] for n in (left, right)]
    if ends[0] != ends[1]:
        raise ShapeError(f"vecdot: axis {axis} has {ends[0]} values of x1, {ends[1]} of x2")
    pairs = (conj(x1) if is_complex(left) else x1) * x2
    if pairs.dtype in (*FLOATING, COMPLEX64, I32, U32, *WIDE):
        return sum(pairs, axis, dtype=pairs.dtype)
    return sum(pairs, axis).astype(pairs.dtype)


def tensordot(a: Array, b: Array, /, axes: Any = 2) -> Array:
    """Sum products over axes of both.

    Parameters
    ----------
    a, b : any numbers
    axes : int, or two sequences of int
        So many last axes of `a` and first axes of `b`; or which of each.
    """
    first, second = (as_node("tensordot", x) for x in (a, b))
    ranks = len(first.spec.shape), len(second.spec.shape)
    if isinstance(axes, int):
        if not 0 <= axes <= min(ranks):
            raise ShapeError(f"tensordot: {axes} axes of {a.shape} and {b.shape}")
        gone = [list(range(ranks[0] - axes, ranks[0])), list(range(axes))]
    else:
        gone = [
            [x.spec.axis(k, "tensordot") for k in ((ks,) if isinstance(ks, int) else ks)]
            for x, ks in zip((first, second), axes, strict=True)
        ]
    folded = [[x.spec.shape[k] for k in ks] for x, ks in zip((first, second), gone, strict=True)]
    if folded[0] != folded[1]:
        raise ShapeError(f"tensordot: axes {gone} have {folded[0]} and {folded[1]} values")
    rest = [[k for k in range(n) if k not in ks] for n, ks in zip(ranks, gone, strict=True)]
    outer_shape = [a.shape[k] for k in rest[0]] + [b.shape[k] for k in rest[1]]
    count = math.prod(folded[0])
    left = a.transpose(*rest[0], *gone[0]) if a.ndim else a
    right = b.transpose(*gone[1], *rest[1]) if b.ndim else b
    rows, cols = math.prod(a.shape[k] for k in rest[0]), math.prod(b.shape[k] for k in rest[1])
    y = matmul(left.reshape(rows, count), right.reshape(count, cols))
    return y.reshape(tuple(outer_shape))


@dataclass(frozen=True, slots=True)
class _Term:
    """An array with a name for each axis."""

    array: Array
    names: str

    def extent(self, name: str) -> int:
        """Return the values along an axis; 1 where no axis has that name."""
        at = self.names.find(name)
        return 1 if at < 0 else self.array.shape[at]


def einsum(subscripts: str, *operands: Array) -> Array:
    """Sum products by the names of axes: ``einsum("ij,jk->ik", a, b)``.

    Parameters
    ----------
    subscripts : str
        Names of each array's axes, with ``...`` for those that broadcast, and after ``->`` those
        of the result. Without ``->``, the result has all axes that are named once, in alphabetical
        order. An axis named twice in one array is its diagonal.
    *operands : arrays
        Multiplied in pairs, beginning with the smallest product.

    Raises
    ------
    ShapeError
        Names do not fit the arrays, or axes of one name have different extents.
    """
    names, wanted = _parse_subscripts(subscripts, operands)
    terms = [_diagonal(x, n) for x, n in zip(operands, names, strict=True)]
    _check_extents(subscripts, terms)
    while len(terms) > 1:
        first, second = _cheapest(terms, wanted)
        rest = [t for t in terms if t is not first and t is not second]
        needed = set(wanted).union(*(t.names for t in rest))
        terms = [*rest, _contract(first, second, needed)]
    last = _sum_out(terms[0], set(wanted))
    return last.array.transpose(*(last.names.index(n) for n in wanted)) if wanted else last.array


def _parse_subscripts(subscripts: str, operands: tuple[Array, ...]) -> tuple[list[str], str]:
    """Return names of each operand's axes and of the result's; ``...`` becomes other letters."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ShapeError(f"einsum: {subscripts!r} names {len(parts)} arrays, got {len(operands)}")
    for part in [*parts, right]:
        letters = part.replace("...", "", 1)
        if letters and not (letters.isascii() and letters.isalpha()):
            raise ShapeError(
                f"einsum: {part!r} in {subscripts!r}, needs letters and at most one ..."
            )
    widths = [x.ndim - len(p.replace("...", "")) for p, x in zip(parts, operands, strict=True)]
    for part, width, x in zip(parts, widths, operands, strict=True):
        if width < 0 or (width and "..." not in part):
            raise ShapeError(f"einsum: {part!r} in {subscripts!r} for an array of {x.shape}")
    most = max([w for p, w in zip(parts, widths, strict=True) if "..." in p], default=0)
    # Greek letters: subscripts may have ASCII letters only, so none is taken.
    dots = "".join(chr(0x391 + i) for i in range(most))
    names = [
        p.replace("...", dots[most - w :] if w else "") for p, w in zip(parts, widths, strict=True)
    ]
    if arrow:
        wanted = right.replace("...", dots)
    else:
        letters = "".join(parts).replace(".", "")
        wanted = dots + "".join(sorted(n for n in set(letters) if letters.count(n) == 1))
    unknown = set(wanted) - set("".join(names))
    if unknown or len(set(wanted)) < len(wanted):
        raise ShapeError(f"einsum: result of {subscripts!r}, needs names of the arrays, each once")
    return names, wanted


def _diagonal(x: Array, names: str) -> _Term:
    """Return a view in which each name occurs once."""
    node = as_node("einsum", x)
    if len(set(names)) == len(names):
        return _Term(x, names)
    own = "".join(dict.fromkeys(names))
    shape: list[int] = []
    strides: list[int] = []
    for name in own:
        at = [i for i, n in enumerate(names) if n == name]
        extents = {node.spec.shape[i] for i in at}
        if len(extents) > 1:
            raise ShapeError(f"einsum: axis {name} has different lengths: {sorted(extents)}")
        shape.append(extents.pop())
        # The diagonal takes a step along all its axes at once.
        strides.append(sum(node.spec.strides[i] for i in at))
    spec = Spec(tuple(shape), node.spec.dtype, tuple(strides), node.spec.offset)
    return _Term(wrap(make_view(node, spec)), own)


def _check_extents(subscripts: str, terms: list[_Term]) -> None:
    for name in dict.fromkeys("".join(t.names for t in terms)):
        found = {t.extent(name) for t in terms} - {1}
        if len(found) > 1:
            raise ShapeError(
                f"einsum: axis {name} of {subscripts!r} has different lengths: {sorted(found)}"
            )


def _cheapest(terms: list[_Term], wanted: str) -> tuple[_Term, _Term]:
    """Return the pair whose product has the fewest values."""

    def size(pair: tuple[_Term, _Term]) -> int:
        rest = [t for t in terms if t is not pair[0] and t is not pair[1]]
        needed = set(wanted).union(*(t.names for t in rest))
        return math.prod(
            max(t.extent(n) for t in pair) for n in needed & set(pair[0].names + pair[1].names)
        )

    return min(combinations(terms, 2), key=size)


def _sum_out(term: _Term, needed: set[str]) -> _Term:
    """Sum a term over axes that are not needed."""
    gone = tuple(i for i, n in enumerate(term.names) if n not in needed)
    if not gone:
        return term
    total = summed(term.array, gone, dtype=_kept_type(term.array))
    return _Term(total, "".join(n for n in term.names if n in needed))


def _kept_type(x: Array) -> Any:
    from wgpu_backend.array.reductions import SUMMED

    return None if x.dtype in SUMMED else x.dtype


def _contract(a: _Term, b: _Term, needed: set[str]) -> _Term:
    """Multiply two terms, and sum over the axes that both have and no other term needs."""
    a = _sum_out(a, needed | set(b.names))
    b = _sum_out(b, needed | set(a.names))
    # One batched matrix product: axes of both that are needed are the batch, the others of both are
    # summed, the rest are rows and columns.
    both = [n for n in a.names if n in b.names]
    batch = [n for n in both if n in needed]
    folded = [n for n in both if n not in needed]
    left = [n for n in a.names if n not in both]
    right = [n for n in b.names if n not in both]
    extent = {n: max(a.extent(n), b.extent(n)) for n in both}
    x, y = _arrange(a, batch, left, folded, extent), _arrange(b, batch, folded, right, extent)
    shape = [
        *(extent[n] for n in batch),
        *(a.extent(n) for n in left),
        *(b.extent(n) for n in right),
    ]
    return _Term(matmul(x, y).reshape(tuple(shape)), "".join([*batch, *left, *right]))


def _arrange(
    term: _Term, batch: list[str], rows: list[str], cols: list[str], extent: dict[str, int]
) -> Array:
    """Return an array as (batch, rows, columns)."""
    from wgpu_backend.array.manipulation import broadcast_to

    order = [*batch, *rows, *cols]
    own = {n: extent.get(n, term.extent(n)) for n in order}
    x = term.array.transpose(*(term.names.index(n) for n in order)) if order else term.array
    x = broadcast_to(x, tuple(own[n] for n in order))
    sizes = (math.prod(own[n] for n in group) for group in (batch, rows, cols))
    return x.reshape(tuple(sizes))
