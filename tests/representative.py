"""Which cases `make test` runs: a few of every test, chosen so that they differ from each other.

The choice follows from the parameters alone, so a new test needs no list and no mark. One case of
a test on a device runs, five of any other; each takes as many values as possible that those before
it did not have. Where a parameter says what is tested, every value of it runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby

import pytest

from tests.pairwise import test_of, values_of

ON_A_DEVICE, ELSEWHERE = 1, 5
# Parameters that name what is tested: an op, a shader, a model.
SUBJECTS = {"architecture", "kernel", "name", "op", "recipe"}
# Marks of what takes long by itself.
LONG = ("slow", "variants")

Value = tuple[str, str]


def representatives(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Cases of these that stand for all of them."""
    return few(i for i in items if not any(i.get_closest_marker(mark) for mark in LONG))


def few(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """A few cases of every test, whatever they take."""
    tests = groupby(sorted(items, key=test_of), key=test_of)
    return {case for _, cases in tests for case in chosen(list(cases))}


def chosen(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Cases of one test that have, together, most values of its parameters."""
    on_device = [case for case in cases if case.get_closest_marker("gpu")]
    most = ON_A_DEVICE if on_device else ELSEWHERE
    # In an order that has nothing to do with that of the parameters, the same in every run; what
    # compiles for seconds comes behind what does not.
    left = sorted(on_device or cases, key=lambda case: (_is_wide(case), _drawn(case)))
    missing = set[Value]().union(*map(values_of, left))
    found: list[pytest.Item] = []
    while left:
        best = max(left, key=lambda case: _gain(case, missing))
        subjects, others = _gain(best, missing)
        if found and not subjects and (not others or len(found) >= most):
            break
        found.append(best)
        left.remove(best)
        missing -= values_of(best)
    return found


def _gain(case: pytest.Item, missing: set[Value]) -> tuple[int, int]:
    """How many subjects, and how many values of any kind, a case has that are missing."""
    new = values_of(case) & missing
    return sum(name in SUBJECTS for name, _ in new), len(new)


def _is_wide(case: pytest.Item) -> bool:
    """Whether a case takes the kernels for hardware where there are others."""
    return any("wide" in text for _, text in values_of(case))


def _drawn(case: pytest.Item) -> int:
    return zlib.crc32(case.nodeid.encode())
