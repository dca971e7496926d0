"""einsum: sums of products by the names of axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from wgpu_backend.array.core import wrap
from wgpu_backend.array.lifting import as_node
from wgpu_backend.array.products import matmul
from wgpu_backend.array.reductions import sum as summed
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.shape.views import make_view

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


@dataclass(frozen=True, slots=True)
class _Term:
    """An array with a name for each axis."""

    array: Array
    names: str

    def extent(self, name: str) -> int:
        """Values along an axis; 1 where there is none of that name."""
        at = self.names.find(name)
        return 1 if at < 0 else self.array.shape[at]


def einsum(subscripts: str, *operands: Array) -> Array:
    """Sums of products by the names of axes: ``einsum("ij,jk->ik", a, b)``.

    Parameters
    ----------
    subscripts : str
        Names of each array's axes, with ``...`` for those that broadcast, and behind ``->`` those
        of the result; without it, all that are named once, in the order of the alphabet. An axis
        named twice in one array is its diagonal.
    *operands : arrays
        Joined in pairs, those first whose product is smallest.

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
    """Names of axes of each operand and of the result; those of ``...`` are other characters."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ShapeError(f"einsum: {subscripts!r} names {len(parts)} arrays, got {len(operands)}")
    for part in [*parts, right]:
        letters = part.replace("...", "", 1)
        if letters and not (letters.isascii() and letters.isalpha()):
            raise ShapeError(f"einsum: {part!r} in {subscripts!r}, needs letters and one ...")
    widths = [x.ndim - len(p.replace("...", "")) for p, x in zip(parts, operands, strict=True)]
    for part, width, x in zip(parts, widths, operands, strict=True):
        if width < 0 or (width and "..." not in part):
            raise ShapeError(f"einsum: {part!r} in {subscripts!r} for an array of {x.shape}")
    most = max([w for p, w in zip(parts, widths, strict=True) if "..." in p], default=0)
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
    """View in which each name stands once."""
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
            raise ShapeError(f"einsum: axis {name} has {sorted(extents)} values in one array")
        shape.append(extents.pop())
        strides.append(sum(node.spec.strides[i] for i in at))
    spec = Spec(tuple(shape), node.spec.dtype, tuple(strides), node.spec.offset)
    return _Term(wrap(make_view(node, spec)), own)


def _check_extents(subscripts: str, terms: list[_Term]) -> None:
    for name in dict.fromkeys("".join(t.names for t in terms)):
        found = {t.extent(name) for t in terms} - {1}
        if len(found) > 1:
            raise ShapeError(f"einsum: axis {name} of {subscripts!r} has {sorted(found)} values")


def _cheapest(terms: list[_Term], wanted: str) -> tuple[_Term, _Term]:
    """Pair whose product has the fewest values."""

    def size(pair: tuple[_Term, _Term]) -> int:
        rest = [t for t in terms if t is not pair[0] and t is not pair[1]]
        needed = set(wanted).union(*(t.names for t in rest))
        return math.prod(
            max(t.extent(n) for t in pair) for n in needed & set(pair[0].names + pair[1].names)
        )

    return min(combinations(terms, 2), key=size)


def _sum_out(term: _Term, needed: set[str]) -> _Term:
    """Term summed over axes that nobody needs."""
    gone = tuple(i for i, n in enumerate(term.names) if n not in needed)
    if not gone:
        return term
    total = summed(term.array, gone, dtype=_kept_type(term.array))
    return _Term(total, "".join(n for n in term.names if n in needed))


def _kept_type(x: Array) -> Any:
    from wgpu_backend.array.reductions import SUMMED

    return None if x.dtype in SUMMED else x.dtype


def _contract(a: _Term, b: _Term, needed: set[str]) -> _Term:
    """Product of two terms, summed over what both have and nobody else needs."""
    a = _sum_out(a, needed | set(b.names))
    b = _sum_out(b, needed | set(a.names))
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
    """Array as (batch, rows, columns)."""
    from wgpu_backend.array.shaping import broadcast_to

    order = [*batch, *rows, *cols]
    own = {n: extent.get(n, term.extent(n)) for n in order}
    x = term.array.transpose(*(term.names.index(n) for n in order)) if order else term.array
    x = broadcast_to(x, tuple(own[n] for n in order))
    sizes = (math.prod(own[n] for n in group) for group in (batch, rows, cols))
    return x.reshape(tuple(sizes))
