"""A few faults of each kind; `python -m tests.server.stress` makes hundreds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

from tests.server.stress import COMMANDS, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.gpu,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
COUNTS = {"kills": 3, "pictures": 2, "swaps": 4, "slow": 2, "gone": 3, "ends": 3, "pulls": 2}
RIGHT = {
    "kills": r"^server goes on, [0-2] processes",
    "pictures": r"^answered +5\n(.|\n)*^server goes on, 1 processes",
    "swaps": r"^after   8 swaps: .* [12] processes",
    "slow": r"^free again after [0-9]\.",
    "gone": r"^3 went, 3 answers were cancelled",
    "pulls": r"^then: .*success.* answers: 200",
    "ends": r"^SIGTERM: ended with -15 .* was answered",
}
WRONG = r"hang|unclear *\d|connection: |Traceback|inf"


@pytest.mark.parametrize("command", COUNTS)
def test_a_server_outlives_its_faults(command: str, tmp_path: Path):
    assert command in COMMANDS
    seen = "\n".join(run(command, COUNTS[command], tmp_path, seed=1))
    assert re.search(RIGHT[command], seen, re.MULTILINE), seen
    assert not re.search(WRONG, seen), seen
