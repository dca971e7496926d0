"""Radix sort of long rows, the least significant digit first; see `argsort`.

A pass sorts by one digit and keeps the order of equal digits. Each row is cut into chunks. The pass
counts each digit in each chunk, running sums of the counts give the place of each chunk's keys of
each digit, and the keys are moved there. Keys travel with their columns, as pairs until the
remaining bits of a key leave room for a column, then both in one word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wgpu_backend.dtypes import I32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import grid_for, require
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.folding import integer_keys
from wgpu_backend.ops.reduce.scan import cumsum
from wgpu_backend.ops.reference import Array

KEY_BITS = 32
# Wide digits need fewer passes, and more counters, which pay from this length on.
WIDE_FROM = 1 << 16
WIDE_DIGITS, DIGITS = (11, 11, 10), (8, 8, 8, 8)
# Values in a chunk for each of its counters: all kernels together touch a counter ten times.
KEYS_PER_COUNTER = 8
VALUES, PAIRS, WORDS, IDS = range(4)  # forms of keys; the shaders have the same numbers


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
    """Return the form of the keys that a pass reads."""
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
    return np.array(counts, np.int32).reshape(shape).swapaxes(1, 2).reshape(len(digits), -1)


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
        keys = x.view(np.uint64) ^ least
    elif x.dtype.kind in "ub":
        keys = x.astype(np.uint32)
    elif x.dtype.kind == "i":
        keys = x.astype(np.int32).view(np.uint32) ^ sign
    else:
        bits = x.astype(np.float32).view(np.uint32)
        keys = np.where(bits > sign, ~bits, bits | sign)
        keys = np.where(np.isnan(x), np.uint32(0xFFFFFFFF), keys)
    return ~keys if descending else keys
