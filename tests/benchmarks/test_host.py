"""Where host time goes is taken apart without changing what is measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.host import MADE, PARTS, Measured, Stopwatch, findings
from wgpu_backend.ml.opening import choose_device

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


def test_lines_are_drawn_through_layers_and_through_the_fastest_steps():
    none = dict.fromkeys(MADE, 0)
    one = {**none, "buffers": 1}
    results = [
        Measured(
            "m",
            n,
            7 * n + 6,
            k,
            900 / k,
            100 / k + 2.0 * (7 * n + 6),
            4.0,
            8.0,
            450.0,
            {},
            one,
            none,
        )
        for n in (1, 4, 24)
        for k in (1, 2)
    ]
    assert findings(results) == [
        "buffers, pipelines and bind groups made by all steps: 6",
        "1 in a submit: 2.0 times what wgpu takes for 174 dispatches of one small kernel",
        "1 in a submit: 7.00 dispatches a layer and 6.0 besides",
        "1 in a submit: 100 µs a step and 2.00 µs a dispatch, by the fastest steps",
        "2 in a submit: 1.0 times what wgpu takes for 174 dispatches of one small kernel",
        "2 in a submit: 7.00 dispatches a layer and 6.0 besides",
        "2 in a submit: 50 µs a step and 2.00 µs a dispatch, by the fastest steps",
    ]
    assert len(findings(results[:1])) == 2


@pytest.mark.slow
def test_a_step_makes_nothing_and_its_parts_add_up(tmp_path):
    device = choose_device(None)[1]
    if device.kind == "cpu":
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
    results = json.loads(out.read_text("utf-8"))
    assert [each["together"] for each in results] == [1, 2, 1, 2]
    assert results[0]["dispatches"] < results[2]["dispatches"]
    for each in results:
        assert each["made"] == dict.fromkeys(MADE, 0)
        assert each["generated"].pop("tokens") > 0
        assert set(each["generated"].values()) == {0}
        assert sum(each["parts"].values()) == pytest.approx(each["microseconds"])
        assert all(each["parts"][part] > 0 for part in PARTS)
        # What is recorded ahead hides behind the device: only with it do the parts add up.
        assert 0 < each["exposed"] < each["microseconds"]
        assert each["floor"] > 0
