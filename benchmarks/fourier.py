"""Measure `wx.fft` against NumPy's on this CPU, in one run.

    python -m benchmarks.fourier [--device llvmpipe] [--repeats 40]

A transform of each takes its turn; shown are medians of time by the clock and of processors, which
other jobs of a machine change less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import wgpu_backend.array as wx

SHAPES = [(1 << 20,), (1024, 1024)]


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Return milliseconds of a call: wall clock and processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    act()
    return 1e3 * (time.perf_counter() - clock), 1e3 * (time.process_time() - processor)


def measured(shape: tuple[int, ...], repeats: int) -> str:
    """Format the line for transforms along the last axis of random numbers of a shape."""
    parts = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    host = (parts[0] + 1j * parts[1]).astype(np.complex64)
    x = wx.array(host)
    for _ in range(3):
        wx.eval(wx.fft.fft(x))
        wx.synchronize()
    pairs = [
        (timed(lambda: np.fft.fft(host)), timed(lambda: (wx.eval(wx.fft.fft(x)), wx.synchronize())))
        for _ in range(repeats)
    ]
    (clock, processor), (own_clock, own_processor) = (
        [statistics.median(times) for times in zip(*side, strict=True)]
        for side in zip(*pairs, strict=True)
    )
    return (
        f"{'x'.join(map(str, shape)):>10}: NumPy {clock:.1f} ms ({processor:.1f} of processors), "
        f"wx {own_clock:.1f} ms ({own_processor:.1f}), {clock / own_clock:.2f} x NumPy's speed"
    )


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="software")
    parser.add_argument("--repeats", type=int, default=40)
    asked = parser.parse_args()
    wx.set_default_device(asked.device)
    print(wx.default_device())
    for shape in SHAPES:
        print(measured(shape, asked.repeats))


if __name__ == "__main__":
    main()
