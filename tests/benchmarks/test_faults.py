"""Faults of a pipeline over two nodes: a kill and a link that is down, with requests under way."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_request_hangs_and_none_gets_another_text():
    line = [sys.executable, "-m", "benchmarks.cluster.faults", "--proxies"]
    options = ["--requests", "6", "--faults", "2", "--delay", "0.01"]
    found = subprocess.run(
        [*line, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=500
    )
    assert found.returncode == 0, found.stderr
    last = found.stdout.split("round 2: ")[1].splitlines()
    assert "hung 0; texts that differ 0" in last[0]
    # The kill; the link that was down ended nothing.
    assert any("open again after" in each for each in last)
