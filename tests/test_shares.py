"""The lists of tests in tests/shares.py name tests that there are."""

from pathlib import Path

import pytest

from tests.shares import ALL_LANES, FOUR_LANES, SECOND_DRIVER

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("start", [*SECOND_DRIVER, *FOUR_LANES, *ALL_LANES])
def test_listed_tests_are_there(start):
    file, _, name = start.partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text("utf-8") if name else True
    assert (ROOT / file).is_file()
