"""Radix sort of long rows, the least significant digit first; see `argsort`.

A pass sorts by one digit and keeps the order of equal digits. Each row is cut into chunks: how
often each digit occurs in each chunk is counted, running sums of the counts say where each chunk
puts its keys of each digit, and the keys are moved there. Keys travel with their columns, as pairs
until the digits done leave a key as many bits as a column needs, then both in one word.
"""

from __future__ import annotations

from dataclasses import dataclass

from wgpu_backend.dtypes import I32, U32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import grid_for, require
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.folding import integer_keys
from wgpu_backend.ops.reduce.scan import cumsum

KEY_BITS = 32
# Wide digits need fewer passes, and more counters, which pay from this length on.
WIDE_FROM = 1 << 16
WIDE_DIGITS, DIGITS = (11, 11, 10), (8, 8, 8, 8)
# Values in a chunk for each of its counters: all kernels together touch a counter ten times.
KEYS_PER_COUNTER = 8
VALUES, PAIRS, WORDS, IDS = range(4)  # forms of keys; the shaders have the same numbers


@dataclass(frozen=True, slots=True)
class Digit:
    """Bits of a key that one pass sorts by: `bits` of them above the lowest `shift`."""

    shift: int
    bits: int

    @property
    def chunk(self) -> int:
        """Values in a chunk."""
        return KEYS_PER_COUNTER << self.bits

    @property
    def done(self) -> int:
        """Bits that keys are sorted by after the pass."""
        return self.shift + self.bits


def digits(cols: int) -> tuple[Digit, ...]:
    """Digits that rows of a length are sorted by."""
    widths = WIDE_DIGITS if cols >= WIDE_FROM else DIGITS
    return tuple(Digit(sum(widths[:i]), bits) for i, bits in enumerate(widths))


def radix_sorted(x: Node, *, descending: bool) -> Node:
    """Columns of each row in the order of their values; see `argsort`.

    Parameters
    ----------
    x : (rows, cols), f32, f16, bf16, integers of up to 32 bits or bool
    descending : bool

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
    """Form in which a pass finds its keys."""
    if shift == 0:
        return VALUES
    return PAIRS if len(keys.shape) == 3 else WORDS


@op(dense=("x",), trusted=True)
def radix_count(x: Node, *, shift: int, bits: int, descending: bool) -> Launch:
    """How often each digit occurs in each chunk of a row.

    Parameters
    ----------
    x : (rows, cols), as `radix_sorted` takes it, or u32; or (rows, cols, 2), u32
        Values where `shift` is 0; then what `radix_scatter` makes of them.
    shift, bits : int
        The digit.
    descending : bool

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


@op(dense=("x", "ends"), trusted=True)
def radix_scatter(x: Node, ends: Node, *, shift: int, bits: int, descending: bool) -> Launch:
    """Put keys into the order of one digit, those of equal digits as they were.

    Parameters
    ----------
    x : (rows, cols), as `radix_sorted` takes it, or u32; or (rows, cols, 2), u32
        As `radix_count`.
    ends : (rows, digits * chunks), i32
        Running sums of what `radix_count` gives.
    shift, bits : int
        The digit.
    descending : bool

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


def _choices(x: Node, digit: Digit, descending: bool) -> dict[str, int | bool]:
    form = _form(x.spec, digit.shift)
    return {
        "INPUT": form,
        **(integer_keys(x.spec.dtype) if form == VALUES else {}),
        "DESCENDING": descending and form == VALUES,
        "SHIFT": digit.shift,
        "BINS": 1 << digit.bits,
    }
