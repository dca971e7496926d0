"""Groups of requests in a pipeline whose stages take a set time, against one group and simulated.

    python -m benchmarks.cluster.groups [--seconds 14]

Two devices sleep for each run: a base time, and as much for each row. So the result depends little
on what else the machine does.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from benchmarks.cluster import calibrate
from benchmarks.cluster.simulate import Costs, Setup, percentile, simulate
from tests.builders import Dims, tiny_model
from tests.engine.test_groups import GREEDY, open_placed
from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.batching.request import Request

# Seconds of the whole model for a step, and for each of its rows.
EACH = 0.012
SLOTS, PROMPT, ANSWER, LONGEST = 8, 8, 32, 100
USERS = (2, 4, 8)


def make_request(draw: random.Random, prompt: int, tokens: int) -> Request:
    """Make a request whose prompt no cache has."""
    ids = [draw.randrange(5, 90) for _ in range(prompt)]
    return Request(ids, GREEDY, max_tokens=tokens, ignore_eos=True)


def predict(users: int) -> tuple[float, float]:
    """Return the tokens per second and the p95 of answers that are simulated."""
    setup = Setup(
        2, users, depth=2, slots=SLOTS // 2, chunk=PROMPT, system=PROMPT, answered=ANSWER, turns=1,
        think=0.0, cached=0, seconds=60.0, warm=10.0, routing="prefix",
    )  # fmt: skip
    costs = Costs(EACH, EACH, EACH, 0.0)
    found = [simulate(replace(setup, seed=seed), costs) for seed in range(5)]
    late = median(percentile(each.whole, 0.95) for each in found)
    return median(each.throughput for each in found), late


def main() -> int:
    """Measure loads with one group and with several, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=14.0)
    options = parser.parse_args()
    changed = {"PROMPT": PROMPT, "ANSWER": ANSWER, "LONGEST": LONGEST, "_request": make_request}
    for name, value in {**changed, "SECONDS": options.seconds}.items():
        setattr(calibrate, name, value)
    print("| groups | users | tokens/s | simulated | error | p95 whole, s | simulated | error |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_model(Path(folder) / "tiny.gguf", dims=Dims(layers=4), tied=True)
        model, _ = open_placed(path, EACH, 2, room=SLOTS)
        with model:
            for name in ("one", "several"):
                with Engine(model) as engine:
                    if name == "one":
                        engine._core._groups.most = 1
                    worker: Any = SimpleNamespace(engine=engine)
                    for users in USERS:
                        rate, slow = calibrate.load([worker], users)
                        own, late = predict(users)
                        print(
                            f"| {name} | {users} | {rate:.0f} | {own:.0f} | {own / rate - 1:+.0%} "
                            f"| {slow:.1f} | {late:.1f} | {late / slow - 1:+.0%} |",
                            flush=True,
                        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
