"""The lists in tests/shares.py name what there is, and what a share would skip."""

import re
from pathlib import Path

import pytest

from tests.shares import ALL_LANES, EIGHT_LANE_FIXTURES, FOUR_LANES, SECOND_DRIVER

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
