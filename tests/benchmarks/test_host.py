"""Where host time goes is taken apart without changing what is measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.host import MADE, PARTS, Measured, Stopwatch, fit
from wgpu_backend.engine.language_model import choose_device

ROOT = Path(__file__).parents[2]


class Clerk:
    def act(self, number):
        return number + 1


def test_a_stopwatch_counts_and_goes_away():
    watch, before = Stopwatch(), Clerk.act
    with watch.on(Clerk, "act", "work"):
        assert Clerk().act(1) == 2
    assert watch.seconds["work"] > 0
    assert Clerk.act is before


def test_a_line_goes_through_the_fastest_steps():
    results = [Measured("m", n, n, 1, 9.0, 100 + 2.0 * n, {}, {}) for n in (10, 20, 40)]
    assert fit(results) == pytest.approx((100, 2))
    assert fit(results[:1]) is None


def test_a_step_makes_nothing_and_its_parts_add_up(tmp_path):
    device = choose_device(None)[1]
    if device.kind == "numpy":
        pytest.skip("needs an adapter")
    out = tmp_path / "host.json"
    words = ["--layers", "1,3", "--steps", "5", "--device", device.id, "--json", str(out)]
    done = subprocess.run(
        [sys.executable, "benchmarks/host.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    small, large = json.loads(out.read_text("utf-8"))
    assert small["dispatches"] < large["dispatches"]
    for each in (small, large):
        assert each["made"] == dict.fromkeys(MADE, 0)
        assert sum(each["parts"].values()) == pytest.approx(each["microseconds"])
        assert all(each["parts"][part] > 0 for part in PARTS)
