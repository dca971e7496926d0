"""The lists in tests/shares.py name what there is, and what a share would skip."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.shares import ALL_LANES, EIGHT_LANE_FIXTURES, FOUR_LANES, ONE_IN, SECOND_DRIVER, draw

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("start", [*SECOND_DRIVER, *FOUR_LANES, *ALL_LANES])
def test_listed_tests_are_there(start):
    file, _, name = start.partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text("utf-8") if name else True
    assert (ROOT / file).is_file()


def test_only_listed_fixtures_skip_a_device_of_four_lanes():
    """What another one skips would run in no share: those on eight lanes are chosen by fixture."""
    skip = re.compile(r"pytest\.skip\([^\n]*\beight\b")
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text("utf-8")
        for at in skip.finditer(text) if path != Path(__file__) else ():
            found.add(re.findall(r"^def (\w+)", text[: at.start()], re.MULTILINE)[-1])
    assert found - {"_shuffling"} <= EIGHT_LANE_FIXTURES
    assert len(found) >= 3


class Case(SimpleNamespace):
    """Enough of a pytest item to be drawn."""

    __hash__ = object.__hash__


def cases_of(test, count):
    return [Case(nodeid=f"tests/test_a.py::{test}[{n}]") for n in range(count)]


@pytest.mark.parametrize("count", [1, 3, 4, 30])
def test_each_case_is_drawn_as_often_as_the_others(count):
    line, seeds = cases_of("test_a", count), range(2000)
    found = Counter(case.nodeid for seed in seeds for case in draw(line, line[:1], seed))
    # 333 of 2000 with a spread of 17; five spreads are exceeded once in millions.
    assert all(abs(found[case.nodeid] - len(seeds) / ONE_IN) < 100 for case in line)


def test_a_seed_draws_the_same_in_any_process_and_another_one_others():
    line = cases_of("test_a", 40) + cases_of("test_b", 40)
    assert draw(line, line, 5) == draw(line[::-1], line, 5) != draw(line, line, 6)


@pytest.mark.parametrize(("count", "mean"), [(1, 0.5), (3, 0.5), (12, 1), (30, 2.5)])
def test_of_a_slow_test_a_case_is_drawn_in_every_second_run_or_more_often(count, mean):
    line = cases_of("test_a", count)
    found = [len(draw(line, cases_of("test_b", 1), seed)) for seed in range(2000)]
    assert abs(sum(found) - 2000 * mean) < 112  # five spreads of 22
    assert max(found) - min(found) <= 1
