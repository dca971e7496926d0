"""Passes of a fast Fourier transform, with butterflies that the host writes for each radix.

Stockham's order: a pass reads values that are far apart and writes results in their final order, so
nothing is permuted at the end (Cochran et al. 1967; Govindaraju et al. 2008, §4). A thread takes as
many values as the radix, transforms them in registers, and writes them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import count
from string import Template

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.graph.wgsl_source import Inline
from wgpu_backend.ops.check import require, require_dtype
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

MOST_RADIX = 32
# Primes that butterflies are written for.
PRIMES = (2, 3, 5, 7, 11, 13)
# Up to so many roots, a table has each. Beyond, roots are products of two entries.
FEW_ROOTS = 4096
# Distance between roots of the coarse half of such a table.
STEP = 1024
_KERNEL = Template("""\
// @import lib/index/grid
const WG: u32 = 64u;
// Steps before this one are done, real and imaginary parts are exchanged at the ends.
const FIRST: bool = false;
const SWAP_IN: bool = false;
const SWAP_OUT: bool = false;
const FINE: bool = false;

struct Params {
    size: u32, length: u32, done: u32, turn: u32, scale: f32, x_offset: u32, table_offset: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec2<f32>>;
@group(0) @binding(3) var<uniform> params: Params;

fn times(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

fn root(turn: u32) -> vec2<f32> {
    let start = params.table_offset / 2u;
    if FINE {
        return times(table[start + turn % ${step}u], table[start + ${step}u + turn / ${step}u]);
    }
    return table[start + turn];
}

fn taken(at: u32) -> vec2<f32> {
    let value = x[at];
    if SWAP_IN {
        return value.yx;
    }
    return value;
}

fn put(at: u32, value: vec2<f32>) {
    var found = value * params.scale;
    if SWAP_OUT {
        found = found.yx;
    }
    y[at] = found;
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let apart = params.length / ${radix}u;
    let j = i % apart;
    let row = i / apart * params.length;
    let start = params.x_offset / 2u + row + j;
    let k = j % params.done;
    $loads
    if !FIRST {
        let turn = k * params.turn;
        $turns
    }
    $body
    let place = row + (j - k) * ${radix}u + k;
    $stores
}
""")


def factor_length(length: int) -> list[int] | None:
    """Factor a length into few, large radices; return None if a prime factor is too large."""
    rest, primes = length, list[int]()
    for prime in PRIMES:
        while rest % prime == 0:
            primes.append(prime)
            rest //= prime
    if rest > 1:
        return None
    found: list[int] = []
    # Large primes first: small ones fill up radices.
    for prime in reversed(primes):
        fits = [i for i, radix in enumerate(found) if radix * prime <= MOST_RADIX]
        if fits:
            found[fits[0]] *= prime
        else:
            found.append(prime)
    return found or [1]


@lru_cache(maxsize=64)
def unity_roots(length: int) -> NDArray[np.float32]:
    """Return the roots of unity of a length for `fft_pass`: all, or a fine and a coarse part."""
    turns = np.arange(length)
    if length > FEW_ROOTS:
        # Root t is the product of the fine root t % STEP and the coarse root t // STEP.
        turns = np.concatenate([np.arange(STEP), STEP * np.arange(-(-length // STEP))])
    angles = -2 * np.pi / length * turns
    # Computed in f64, so that each root is the nearest f32.
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    # The cache gives the same array to the next caller.
    table.flags.writeable = False
    return table


@op(source="// each radix brings its own", dense=("x", "table"), trusted=True)
def fft_pass(
    x: Node,
    table: Node,
    *,
    radix: int,
    done: int,
    swap_in: bool = False,
    swap_out: bool = False,
    scale: float = 1.0,
) -> Launch:
    """Apply one pass of the transform to rows.

    Parameters
    ----------
    x : (rows, length, 2), f32
        Real and imaginary parts.
    table : (roots, 2), f32
        `unity_roots` the length.
    radix, done : int
        Of this pass, and the product of those before; both divide the length.
    swap_in, swap_out : bool
        Exchange parts of what is read, and of the result: with both the transform is the inverse.
    scale : float
        Factor of the result.

    Returns
    -------
    Like `x`.
    """
    rows, length, _ = x.spec.shape
    require_dtype("fft_pass", "x", x, (F32,))
    require(
        length % (radix * done) == 0,
        ShapeError,
        f"fft_pass: {length} values, not a multiple of {radix} * {done}",
    )
    threads = rows * (length // radix)
    return Launch(
        Spec.dense(x.spec.shape, F32),
        {"x": x, "table": table},
        threads=threads,
        params={
            "size": threads,
            "length": length,
            "done": done,
            "turn": length // (radix * done),
            "scale": scale,
        },
        choices={
            "FIRST": done == 1,
            "SWAP_IN": swap_in,
            "SWAP_OUT": swap_out,
            "FINE": length > FEW_ROOTS,
        },
        shader=_wgsl(radix),
        work=2 * x.spec.nbytes,
    )


@fft_pass.reference
def fft_pass_reference(
    x: Array,
    table: Array,
    *,
    radix: int,
    done: int,
    swap_in: bool = False,
    swap_out: bool = False,
    scale: float = 1.0,
) -> Array:
    """Apply one pass, in f64."""
    rows, length, _ = x.shape
    real, imag = (x[..., i].astype(np.float64) for i in ((1, 0) if swap_in else (0, 1)))
    values = (real + 1j * imag).reshape(rows, radix, length // radix)
    places = np.arange(radix)
    steps = np.tile(np.arange(done), length // (radix * done))
    turns = places[:, None] * steps / (radix * done)
    butterfly = np.exp(-2j * np.pi * places[:, None] * places / radix)
    found = butterfly @ (values * np.exp(-2j * np.pi * turns)) * scale
    ordered = found.reshape(rows, radix, -1, done).transpose(0, 2, 1, 3).reshape(rows, length)
    parts = [ordered.real, ordered.imag]
    return np.stack(parts[::-1] if swap_out else parts, axis=-1)


@lru_cache(maxsize=64)
def _wgsl(radix: int) -> Inline:
    """Write the kernel of a radix."""
    lines = _Lines()
    names = [f"v{i}" for i in range(radix)]
    results = lines.transform(names)
    text = _KERNEL.substitute(
        radix=radix,
        step=STEP,
        loads="\n    ".join(f"var {v} = taken(start + {i}u * apart);" for i, v in enumerate(names)),
        turns="\n        ".join(_turns(names)),
        body="\n    ".join(lines.written),
        stores="\n    ".join(
            f"put(place + {i}u * params.done, {v});" for i, v in enumerate(results)
        ),
    )
    return Inline(f"fft of radix {radix}", text)


def _turns(names: list[str]) -> list[str]:
    """Write the products of values and roots of unity; only roots of powers of two are read."""
    lines: list[str] = []
    for i, name in enumerate(names[1:], 1):
        # The lowest set bit of i.
        low = i & -i
        made = f"root({i}u * turn)" if i == low else f"times(w{low}, w{i - low})"
        lines.append(f"let w{i} = {made};")
        lines.append(f"{name} = times({name}, w{i});")
    return lines


class _Lines:
    """WGSL statements of a transform in registers."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self._number = count()

    def let(self, value: str) -> str:
        """Bind a value to a new name."""
        name = f"t{next(self._number)}"
        self.written.append(f"let {name} = {value};")
        return name

    def transform(self, names: list[str]) -> list[str]:
        """Write a transform by columns, then rows (Cooley & Tukey), and return the names."""
        size = len(names)
        if size == 1:
            return names
        first = next(p for p in PRIMES if size % p == 0)
        # Radix 4 takes fewer products than two passes of radix 2: its turns are exchanges and
        # signs.
        if size % 4 == 0 and size > 4:
            first = 4
        if size == first:
            return self._prime(names)
        rest = size // first
        columns = [self.transform(names[i::rest]) for i in range(rest)]
        found: list[list[str]] = []
        for k in range(first):
            turned = [self._rotate(columns[i][k], i * k, size) for i in range(rest)]
            found.append(self.transform(turned))
        return [found[k][m] for m in range(rest) for k in range(first)]

    def _rotate(self, name: str, turns: int, size: int) -> str:
        turns %= size
        if not turns:
            return name
        # Quarter turns are exchanges and signs.
        if 4 * turns == size:
            return self.let(f"vec2<f32>({name}.y, -{name}.x)")
        if 2 * turns == size:
            return self.let(f"-{name}")
        if 4 * turns == 3 * size:
            return self.let(f"vec2<f32>(-{name}.y, {name}.x)")
        angle = 2 * math.pi * turns / size
        return self.let(
            f"times({name}, vec2<f32>({_number(math.cos(angle))}, {_number(-math.sin(angle))}))"
        )

    def _prime(self, names: list[str]) -> list[str]:
        """Write a transform of a prime number of values, or four, by sums and differences."""
        size = len(names)
        if size == 2:
            a, b = names
            return [self.let(f"{a} + {b}"), self.let(f"{a} - {b}")]
        if size == 4:
            a, c = self._prime(names[::2])
            b, d = self._prime(names[1::2])
            d = self._rotate(d, 1, 4)
            (w, y), (x, z) = self._prime([a, b]), self._prime([c, d])
            return [w, x, y, z]
        # Roots j and size - j are conjugate: sums and differences halve the products.
        half = range(1, size // 2 + 1)
        sums = [self.let(f"{names[j]} + {names[size - j]}") for j in half]
        gaps = [self.let(f"{names[j]} - {names[size - j]}") for j in half]
        found = [self.let(" + ".join([names[0], *sums]))] * size
        for k in half:
            angles = [2 * math.pi * (j * k % size) / size for j in half]
            terms = (f"{s} * {_number(math.cos(a))}" for s, a in zip(sums, angles, strict=True))
            even = self.let(" + ".join([names[0], *terms]))
            terms = (f"{g} * {_number(math.sin(a))}" for g, a in zip(gaps, angles, strict=True))
            odd = self.let(" + ".join(terms))
            found[k] = self.let(f"{even} + vec2<f32>({odd}.y, -{odd}.x)")
            found[size - k] = self.let(f"{even} - vec2<f32>({odd}.y, -{odd}.x)")
        return found


def _number(value: float) -> str:
    # Up to 1, f32 has no more than nine decimals; parentheses, for a minus sign.
    return f"({value:.9f})"
