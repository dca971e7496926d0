"""Measure the host time of arrays: a compiled function's call, and a line of eager code.

    python -m benchmarks.array_calls [--device llvmpipe] [--ops 100] [--json FILE]

Times are of Python alone: the device works meanwhile, and is waited for outside the clock. Shown
next to them are NumPy's times for the same chain, and MLX's where it is installed, on this CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import wgpu_backend.array as wx

REPEATS = 50
Values = Any  # arrays of any library


def chain(x: Values, y: Values, ops: int) -> Values:
    """Apply many small ops in sequence."""
    for i in range(ops // 2):
        x = x * 0.5 + (y if i % 2 else 0.25)
    return x


def seconds(act: Callable[[], object], after: Callable[[], object] = lambda: None) -> float:
    """Return the median time of a call; the remaining work is waited for outside the clock."""
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
        after()
    return statistics.median(times)


def measured(ops: int, size: int) -> dict[str, float]:
    """Measure the microseconds per op of each library."""
    host = np.random.default_rng(0).standard_normal((2, size), dtype=np.float32)
    x, y = (wx.array(row) for row in host)
    compiled = wx.compile(lambda a, b: chain(a, b, ops))
    wx.eval(compiled(x, y))
    found = {
        "compiled, host": seconds(lambda: compiled(x, y), wx.synchronize),
        "compiled, until done": seconds(lambda: wx.eval(compiled(x, y))),
        "eager, host until handed over": seconds(
            lambda: wx.async_eval(chain(x, y, ops)), wx.synchronize
        ),
        "NumPy": seconds(lambda: chain(host[0], host[1], ops)),
    }
    try:
        mx = import_module("mlx.core")
    except ImportError:
        return _each(found, ops)
    a, b = mx.array(host[0]), mx.array(host[1])
    fast = mx.compile(lambda a, b: chain(a, b, ops))
    mx.eval(fast(a, b))
    found["MLX compiled, until done"] = seconds(lambda: mx.eval(fast(a, b)))
    found["MLX eager, until done"] = seconds(lambda: mx.eval(chain(a, b, ops)))
    return _each(found, ops)


def _each(found: dict[str, float], ops: int) -> dict[str, float]:
    return {name: 1e6 * value / ops for name, value in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default=None)
    parser.add_argument("--ops", type=int, default=100)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device:
        wx.set_default_device(options.device)
    found = measured(options.ops, options.size)
    print(f"{options.ops} ops of {options.size} values on {wx.default_device().name}")
    for name, value in found.items():
        print(f"{name:32}{value:9.2f} µs an op")
    if options.json:
        options.json.write_text(json.dumps({"ops": options.ops, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
