"""Ops that order values: sort, argsort, top_k, topk.

Values become keys that compare as unsigned integers. Rows of up to 1,024 values are sorted by one
kernel, longer ones by radix, the least significant digit first. The largest few of a long row are
chosen first and then sorted: they lie in the k blocks whose maxima are largest.

A pass of the radix sort sorts by one digit and keeps the order of equal digits. Each row is cut
into chunks. The pass counts each digit in each chunk, running sums of the counts give the place of
each chunk's keys of each digit, and the keys are moved there. Keys travel with their columns, as
pairs until the remaining bits of a key leave room for a column, then both in one word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wgpu_backend.dtypes import F32, I32, I64, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, extents, slice_axis
from wgpu_backend.ops.check import (
    FLOATS,
    MAX_GROUPS,
    grid_for,
    require,
    require_dtype,
    require_rank,
    row_count,
)
from wgpu_backend.ops.elementwise.launches import WIDE
from wgpu_backend.ops.index.taking import take_along_axis
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.folding import NUMBERS, compute_dtype, integer_keys, reduce
from wgpu_backend.ops.reduce.scan import cumsum
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.sampling import sampling
from wgpu_backend.ops.shape.copying import cast, contiguous
from wgpu_backend.ops.shape.shapes import reshape_node, swap_last
from wgpu_backend.ops.shape.views import make_view

# Values that one kernel sorts: arrays of the shaders have this size.
SHORT_ROW = 1024
# From this many times k on, choosing blocks costs less than sorting the row.
LONG_FOR_K = 8
# From this many values on, reading them once for all costs less than twice for a few.
LONG_FOR_FEW = 1 << 20
# 2⁴ values: threads that work alone merge so many fast.
LONGEST_BLOCK = 4
# Bits of the lowest number of a type.
LOWEST = {F32: 0xFF800000, I32: 0x80000000, U32: 0}
MOST_AXES = 8


@op(dense=("x",), trusted=True)
def sort_rows(x: Node, *, descending: bool) -> Launch:
    """Sort rows of up to 1,024 values; see `argsort`.

    Parameters
    ----------
    x : (rows, cols)
        f32, f16, bf16, integers of up to 32 bits or bool.

    Returns
    -------
    (rows, cols), i32
        Columns of each row.
    """
    rows, cols = x.spec.shape
    require(
        cols <= SHORT_ROW,
        ShapeError,
        f"sort_rows: x has rows of {cols} values, needs at most {SHORT_ROW}",
    )
    return Launch(
        Spec.dense((rows, cols), I32),
        {"x": x},
        groups=grid_for(rows),
        params={"rows": rows, "cols": cols},
        choices={**integer_keys(x.spec.dtype), "DESCENDING": descending},
        work=x.spec.nbytes * 16,
    )


@sort_rows.reference
def sort_rows_reference(x: Array, *, descending: bool) -> Array:
    """Return the columns of each row in the order of their values."""
    keys = sort_keys(np.ascontiguousarray(x), descending)
    return np.argsort(keys, axis=1, kind="stable").astype(np.int32)


def argsort(x: Node, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Node:
    """Return the indices that sort an axis.

    Parameters
    ----------
    x : (..., n, ...), up to eight axes, f32, f16, bf16, integers or bool
        Axes of any length.
    axis : int
        Another than the last one costs a copy, and the result is a view.
    descending : bool
        Largest first.
    stable : bool
        Equal values keep their order, whatever it says.

    Returns
    -------
    Tensor of the shape of `x`, i32
        NaN counts as larger than any number, so it comes last, or first when descending.

    Raises
    ------
    ShapeError
        There is no such axis.
    """
    _, order, turned, axis = _order("argsort", x, axis, descending)
    return swap_last(reshape_node(order, turned.spec.shape), axis)


def sort(x: Node, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Node:
    """Sort along an axis.

    Parameters
    ----------
    x, axis, descending, stable
        As in `argsort`.

    Returns
    -------
    Like `x`; NaN last, or first when descending.
    """
    rows, order, turned, axis = _order("sort", x, axis, descending)
    return swap_last(reshape_node(take_along_axis(rows, order, 1), turned.spec.shape), axis)


def _order(name: str, x: Node, axis: int, descending: bool) -> tuple[Node, Node, Node, int]:
    """Return the rows along an axis, their order, `x` with that axis last, and the axis."""
    require_rank(name, "x", x, 1, MOST_AXES)
    require_dtype(name, "x", x, NUMBERS)
    axis = x.spec.axis(axis, name)
    turned = swap_last(x, axis)
    rows = reshape_node(turned, (row_count(turned.spec), turned.spec.shape[-1]))
    return rows, _sort(rows, descending), turned, axis


def _sort(x: Node, descending: bool) -> Node:
    # By the lower words first, then by the upper ones: sorts are stable.
    if x.spec.dtype in WIDE:
        low, high = _words(x)
        order = _sort(low, descending)
        return take_along_axis(order, _sort(take_along_axis(high, order, 1), descending), 1)
    if x.spec.shape[1] <= SHORT_ROW:
        return sort_rows(x, descending=descending)
    return radix_sorted(x, descending=descending)


def _words(x: Node) -> tuple[Node, Node]:
    """View integers of 64 bits as lower and upper words, (rows, cols)."""
    dense = x if x.spec.is_dense else contiguous(x)
    # The sign is in the upper word.
    upper = I32 if x.spec.dtype == I64 else U32
    # Counted in words: every second one is a lower word.
    strides = tuple(2 * s for s in dense.spec.strides)
    low, high = (
        make_view(dense, Spec(x.spec.shape, dtype, strides, 2 * dense.spec.offset + at))
        for at, dtype in enumerate((U32, upper))
    )
    return low, high


def top_k(x: Node, k: int) -> Node:
    """Return the columns of each row's largest values, the largest first.

    Parameters
    ----------
    x : (..., cols)
        Up to eight axes, f32, f16, bf16, integers or bool.
    k : int
        1 to the length of a row; up to 256 also more, for floats.

    Returns
    -------
    (..., k), i32
        Of equal values the lower column first; NaN counts as larger than any number, and -1 fills
        up where a row has fewer values.

    Raises
    ------
    ShapeError
        `k` is out of range.
    """
    require_rank("top_k", "x", x, 1, MOST_AXES)
    require_dtype("top_k", "x", x, NUMBERS)
    (k,) = extents("top_k: k", (k,))
    cols, rows = x.spec.shape[-1], row_count(x.spec)
    values, shape = reshape_node(x, (rows, cols)), (*x.spec.shape[:-1], k)
    few = k <= sampling.MAX_K and 0 < rows <= MAX_GROUPS and cols > 0 and x.spec.dtype in FLOATS
    # The sampling kernel gives -1 for missing columns, which ranks beyond the row need.
    if few and (k > cols or x.spec.size < LONG_FOR_FEW):
        values = values if x.spec.dtype == F32 else cast(values, dtype=F32)
        return reshape_node(sampling.top_k(values, k=k), shape)
    require(1 <= k <= cols, ShapeError, f"top_k: k is {k}, needs 1 to {cols}")
    return reshape_node(_largest(values, k), shape)


def topk(x: Node, k: int, axis: int = -1) -> Node:
    """Return the largest values along an axis, the largest first.

    Parameters
    ----------
    x : (..., n, ...)
        Up to eight axes, f32, f16, bf16, integers or bool.
    k : int
        1 to `n`.

    Returns
    -------
    (..., k, ...), of the dtype of `x`; NaN counts as larger than any number.

    Raises
    ------
    ShapeError
        There is no such axis, or `k` is out of range.
    """
    require_rank("topk", "x", x, 1, MOST_AXES)
    axis, (k,) = x.spec.axis(axis, "topk"), extents("topk: k", (k,))
    turned = swap_last(x, axis)
    cols = turned.spec.shape[-1]
    require(1 <= k <= cols, ShapeError, f"topk: k is {k}, axis {axis} needs 1 to {cols}")
    rows = reshape_node(turned, (row_count(turned.spec), cols))
    found = take_along_axis(rows, top_k(rows, k), 1)
    return swap_last(reshape_node(found, (*turned.spec.shape[:-1], k)), axis)


def _largest(x: Node, k: int) -> Node:
    """Return the columns of each row's `k` largest values, the largest first, (rows, k)."""
    if x.spec.dtype in WIDE or x.spec.shape[1] < LONG_FOR_K * k:
        order = _sort(x, descending=True)
        return make_view(order, slice_axis(order.spec, -1, 0, k))
    columns = _chosen(x, k)
    order = _sort(take_along_axis(x, columns, 1), descending=True)
    return take_along_axis(columns, order, 1)


def _chosen(x: Node, k: int) -> Node:
    """Return the columns of each row's `k` largest values, in column order, (rows, k).

    The k blocks with the largest maxima hold the k largest values: any value elsewhere comes after
    the maxima of those blocks ("Dr. Top-k", Gaihre et al. 2021).
    """
    cols = x.spec.shape[1]
    if cols < LONG_FOR_K * k:
        return select_top_k(x, k=k)
    # As many blocks as there are values in k of them, so that both cost the same.
    length = 1 << min(round(math.log2(cols / k) / 2), LONGEST_BLOCK)
    # The k largest values lie in the k blocks with the largest maxima.
    blocks = _chosen(reduce(x, kind="max", axes=(1,), part=length), k)
    places = _chosen(values_of_blocks(x, blocks, length=length), k)
    return columns_of_blocks(places, blocks, length=length)


@op(dense=("x",), trusted=True)
def select_top_k(x: Node, *, k: int) -> Launch:
    """Return the columns of each row's largest values, in column order.

    Parameters
    ----------
    x : (rows, cols)
        f32, f16, bf16, integers of up to 32 bits or bool.
    k : int
        1 to the length of a row.

    Returns
    -------
    (rows, k), i32
        Of equal values the first are taken; NaN counts as larger than any number.
    """
    rows, cols = x.spec.shape
    require(1 <= k <= cols, ShapeError, f"select_top_k: k is {k}, needs 1 to {cols}")
    return Launch(
        Spec.dense((rows, k), I32),
        {"x": x},
        groups=grid_for(rows),
        params={"rows": rows, "cols": cols, "k": k},
        choices=integer_keys(x.spec.dtype),
        work=6 * x.spec.nbytes,
    )


@select_top_k.reference
def select_top_k_reference(x: Array, *, k: int) -> Array:
    """Return the columns of each row's largest values, in column order."""
    return np.sort(sort_rows_reference(x, descending=True)[:, :k], axis=1)


@op(dense=("x", "blocks"), trusted=True)
def values_of_blocks(x: Node, blocks: Node, *, length: int) -> Launch:
    """Gather the values of some blocks of each row.

    Parameters
    ----------
    x : (rows, cols)
        f32, f16, bf16, integers of up to 32 bits or bool.
    blocks : (rows, n), i32
        Which of the row's blocks of `length` values; none is outside the row.

    Returns
    -------
    (rows, n * length), f32 of floats, i32 of signed integers, u32 of others
        The lowest number stands where the last block leaves the row.
    """
    rows, n = blocks.spec.shape
    number = compute_dtype(x.spec.dtype)
    return Launch(
        Spec.dense((rows, n * length), number),
        {"x": x, "blocks": blocks},
        threads=rows * n,
        params={
            "rows": rows,
            "cols": x.spec.shape[1],
            "blocks_each": n,
            "length": length,
            "lowest": LOWEST[number],
        },
        choices={"Value": number.name},
        work=2 * rows * n * length * 4,
    )


@values_of_blocks.reference
def values_of_blocks_reference(x: Array, blocks: Array, *, length: int) -> Array:
    """Gather the values of some blocks of each row, filled up with the lowest."""
    wide = x.astype({"i": np.int32, "f": np.float32}.get(x.dtype.kind, np.uint32))
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(wide.dtype.name).min
    whole = np.pad(wide, [(0, 0), (0, -x.shape[1] % length)], constant_values=lowest)
    in_blocks = whole.reshape(len(x), whole.shape[1] // length, length)
    found = np.take_along_axis(in_blocks, blocks[:, :, None], axis=1)
    return found.reshape(len(x), blocks.shape[1] * length)


@op(dense=("places", "blocks"), trusted=True)
def columns_of_blocks(places: Node, blocks: Node, *, length: int) -> Launch:
    """Convert places in the result of `values_of_blocks` to columns of the row.

    Parameters
    ----------
    places : (rows, k)
        i32.
    blocks : (rows, n)
        i32.
    length : int
        Values in a block.

    Returns
    -------
    (rows, k), i32.
    """
    rows, k = places.spec.shape
    return Launch(
        Spec.dense((rows, k), I32),
        {"places": places, "blocks": blocks},
        threads=rows * k,
        params={"size": rows * k, "k": k, "blocks_each": blocks.spec.shape[1], "length": length},
        work=3 * places.spec.nbytes,
    )


@columns_of_blocks.reference
def columns_of_blocks_reference(places: Array, blocks: Array, *, length: int) -> Array:
    """Convert places in gathered blocks to columns of the row."""
    return np.take_along_axis(blocks, places // length, axis=1) * length + places % length


KEY_BITS = 32
# Wide digits need fewer passes, and more counters, which pay from this length on.
WIDE_FROM = 1 << 16
WIDE_DIGITS, DIGITS = (11, 11, 10), (8, 8, 8, 8)
# Values in a chunk for each of its counters: all kernels together touch a counter ten times.
KEYS_PER_COUNTER = 8
# Forms of keys. The shaders have the same numbers.
VALUES, PAIRS, WORDS, IDS = range(4)


@dataclass(frozen=True, slots=True)
class Digit:
    """The bits of a key that one pass sorts by: `bits` of them above the lowest `shift`."""

    shift: int
    bits: int

    @property
    def chunk(self) -> int:
        """Return the number of values in a chunk."""
        return KEYS_PER_COUNTER << self.bits

    @property
    def done(self) -> int:
        """Return how many bits keys are sorted by after the pass."""
        return self.shift + self.bits


def digits(cols: int) -> tuple[Digit, ...]:
    """Return the digits that rows of `cols` values are sorted by."""
    widths = WIDE_DIGITS if cols >= WIDE_FROM else DIGITS
    return tuple(Digit(sum(widths[:i]), bits) for i, bits in enumerate(widths))


def radix_sorted(x: Node, *, descending: bool) -> Node:
    """Return the columns of each row in the order of their values; see `argsort`.

    Parameters
    ----------
    x : (rows, cols)
        f32, f16, bf16, integers of up to 32 bits or bool.

    Returns
    -------
    (rows, cols), i32.
    """
    for digit in digits(x.spec.shape[1]):
        shift, bits = digit.shift, digit.bits
        counts = radix_count(x, shift=shift, bits=bits, descending=descending)
        x = radix_scatter(x, cumsum(counts), shift=shift, bits=bits, descending=descending)
    return x


def _form(keys: Spec, shift: int) -> int:
    """Return whether a pass reads the values themselves, pairs of key and column, or words."""
    if shift == 0:
        return VALUES
    return PAIRS if len(keys.shape) == 3 else WORDS


@op(dense=("x",), trusted=True)
def radix_count(x: Node, *, shift: int, bits: int, descending: bool) -> Launch:
    """Count each digit in each chunk of a row.

    Parameters
    ----------
    x : (rows, cols), as `radix_sorted` takes it, or u32; or (rows, cols, 2), u32
        Values where `shift` is 0; then what `radix_scatter` makes of them.
    shift, bits : int
        The digit.

    Returns
    -------
    (rows, digits * chunks), i32
        Digit by digit, and for each chunk by chunk.
    """
    rows, cols = x.spec.shape[:2]
    digit = Digit(shift, bits)
    chunks = -(-cols // digit.chunk)
    return Launch(
        Spec.dense((rows, chunks << bits), I32),
        {"x": x},
        groups=grid_for(rows * chunks),
        params={"rows": rows, "cols": cols, "chunks": chunks, "chunk": digit.chunk},
        choices=_choices(x, digit, descending),
        work=2 * x.spec.nbytes,
    )


@radix_count.reference
def radix_count_reference(x: Array, *, shift: int, bits: int, descending: bool) -> Array:
    """Count each digit in each chunk of a row."""
    digits = _digits(_keys(x, shift, descending), shift, bits)
    chunk = Digit(shift, bits).chunk
    starts = range(0, digits.shape[1], chunk)
    counts = [
        [np.bincount(row[s : s + chunk], minlength=1 << bits) for s in starts] for row in digits
    ]
    shape = (len(digits), len(starts), 1 << bits)
    # Digits before chunks: running sums then are places in the sorted row.
    found = np.array(counts, np.int32).reshape(shape).swapaxes(1, 2)
    return found.reshape(len(digits), len(starts) << bits)


@op(dense=("x", "ends"), trusted=True)
def radix_scatter(x: Node, ends: Node, *, shift: int, bits: int, descending: bool) -> Launch:
    """Put keys into the order of one digit; keys of equal digits keep their order.

    Parameters
    ----------
    x : (rows, cols), as `radix_sorted` takes it, or u32; or (rows, cols, 2), u32
        As `radix_count`.
    ends : (rows, digits * chunks), i32
        Running sums of what `radix_count` gives.
    shift, bits : int
        The digit.

    Returns
    -------
    (rows, cols, 2), u32
        Keys and columns; (rows, cols), u32, where both fit into a word; (rows, cols), i32, the
        columns alone, once all bits are sorted by.
    """
    rows, cols = x.spec.shape[:2]
    digit = Digit(shift, bits)
    chunks = -(-cols // digit.chunk)
    require(
        ends.spec.shape == (rows, chunks << bits),
        ShapeError,
        f"radix_scatter: ends is {ends.spec.shape}, needs {(rows, chunks << bits)}",
    )
    output, out = IDS, Spec.dense((rows, cols), I32)
    if digit.done < KEY_BITS:
        # A column fits the bits that are sorted already if there are enough of them.
        paired = cols > 1 << digit.done
        output = PAIRS if paired else WORDS
        out = Spec.dense((rows, cols, 2) if paired else (rows, cols), U32)
    return Launch(
        out,
        {"x": x, "ends": ends},
        groups=grid_for(rows * chunks),
        params={"rows": rows, "cols": cols, "chunks": chunks, "chunk": digit.chunk},
        choices={**_choices(x, digit, descending), "OUTPUT": output, "DONE": digit.done},
        work=8 * x.spec.nbytes,
    )


@radix_scatter.reference
def radix_scatter_reference(
    x: Array, ends: Array, *, shift: int, bits: int, descending: bool
) -> Array:
    """Sort by one digit; `ends` is redundant on the host."""
    keys, columns = _keys(x, shift, descending), _columns(x, shift)
    order = np.argsort(_digits(keys, shift, bits), axis=1, kind="stable")
    keys, columns = (np.take_along_axis(a, order, axis=1) for a in (keys, columns))
    done = shift + bits
    if done == KEY_BITS:
        return columns
    if x.shape[1] > 1 << done:
        return np.stack([keys, columns], axis=-1)
    return keys & ~np.uint32((1 << done) - 1) | columns


def _choices(x: Node, digit: Digit, descending: bool) -> dict[str, int | bool]:
    form = _form(x.spec, digit.shift)
    return {
        "INPUT": form,
        **(integer_keys(x.spec.dtype) if form == VALUES else {}),
        # The first pass inverts the keys; later ones read them inverted.
        "DESCENDING": descending and form == VALUES,
        "SHIFT": digit.shift,
        "BINS": 1 << digit.bits,
    }


def _keys(x: Array, shift: int, descending: bool) -> Array:
    """Return the u32 keys of values, of pairs or of words."""
    if shift == 0:
        return sort_keys(np.ascontiguousarray(x), descending)
    return x[..., 0] if x.ndim == 3 else x


def _columns(x: Array, shift: int) -> Array:
    if shift == 0:
        return np.broadcast_to(np.arange(x.shape[1], dtype=np.uint32), x.shape)
    return x[..., 1] if x.ndim == 3 else x & np.uint32((1 << shift) - 1)


def _digits(keys: Array, shift: int, bits: int) -> Array:
    return (keys >> np.uint32(shift)) & np.uint32((1 << bits) - 1)


def sort_keys(x: Array, descending: bool) -> Array:
    """Return unsigned integers in the order of the values, NaN above all: u32, or u64."""
    sign = np.uint32(0x80000000)
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        least = np.uint64(0 if x.dtype.kind == "u" else 1 << 63)
        # With the sign inverted, negative numbers come first.
        keys = x.view(np.uint64) ^ least
    elif x.dtype.kind in "ub":
        keys = x.astype(np.uint32)
    elif x.dtype.kind == "i":
        keys = x.astype(np.int32).view(np.uint32) ^ sign
    else:
        bits = x.astype(np.float32).view(np.uint32)
        # Floats as integers: the sign is inverted, and negative numbers are, since their bits grow
        # downwards. -0 equals 0 (its bits are `sign`).
        keys = np.where(bits > sign, ~bits, bits | sign)
        # Whatever its sign, a NaN is above all numbers, as in NumPy.
        keys = np.where(np.isnan(x), np.uint32(0xFFFFFFFF), keys)
    # Inverted keys and no reversed order: equal values keep theirs.
    return ~keys if descending else keys
