"""Which cases of a large grid run: so many that every two values of its parameters meet in one.

Nearly all faults show where one or two parameters have certain values (D. R. Kuhn, D. R. Wallace
and A. M. Gallo, "Software fault interactions and implications for software testing", 2004). A grid
of three or more parameters has many times as many cases; `--every-case` runs them all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations, groupby

import pytest

Values = tuple[tuple[str, str], ...]


def pairwise(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Cases that run: of tests on a device as many as have all pairs, of others all."""
    left = sorted(items, key=_grid)
    on_device = [i for i in left if i.get_closest_marker("gpu") and hasattr(i, "callspec")]
    tests = groupby(on_device, key=_grid)
    found = {case for _, cases in tests for case in covering(list(cases))}
    return found | (set(left) - set(on_device))


def covering(cases: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    """Cases of one test that have, together, every pair of values, or `each_value` once."""
    size = 1 if cases[0].get_closest_marker("each_value") else 2
    pairs = [set(combinations(sorted(values_of(case)), size)) for case in cases]
    missing = set[Values]().union(*pairs)
    if not missing:
        return cases
    # In an order that has nothing to do with that of the parameters, the same in every run.
    line = [(-len(pairs[n]), zlib.crc32(c.nodeid.encode()), n) for n, c in enumerate(cases)]
    heapify(line)
    found: list[pytest.Item] = []
    while missing:
        _, drawn, number = heappop(line)
        new = pairs[number] & missing
        if line and -line[0][0] > len(new):  # others have more by now, as far as is known
            heappush(line, (-len(new), drawn, number))
            continue
        found.append(cases[number])
        missing -= new
    return found


@cache
def values_of(case: pytest.Item) -> frozenset[tuple[str, str]]:
    """Parameters of a case, and the texts of their values."""
    spec = getattr(case, "callspec", None)
    return (
        frozenset((name, _text(value)) for name, value in spec.params.items())
        if spec
        else frozenset()
    )


def test_of(item: pytest.Item) -> str:
    """Name of a test without the parameters."""
    return item.nodeid.partition("[")[0]


def _grid(item: pytest.Item) -> tuple[str, bool]:
    """Test of a case, whose variants, which run only when asked for, are a grid of their own."""
    return test_of(item), item.get_closest_marker("variants") is not None


def _text(value: object) -> str:
    """Name of a function or a type, as others have their address in their text."""
    return str(getattr(value, "__qualname__", value))
