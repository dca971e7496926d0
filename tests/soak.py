"""Many evaluations and many images, run by hand: memory use returns to its start.

    python -m tests.soak [--evals 10000] [--pipeline FOLDER --pictures 200] [--device DEVICE]

A line for each quarter: bytes of arrays, bytes kept for reuse, live buffers of the device, arrays
that Python holds, resident memory of the process. The last line says whether the arrays' memory
is what it was.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import wgpu_backend.array as wx
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

SIZES = (1, 3, 33, 257)


def figures() -> tuple[int, int, int, int, float]:
    """What is held now; see the module."""
    gc.collect()
    session = wx.arange(1).session
    executor = session.executor
    buffers = executor.device.memory_report().count if isinstance(executor, WgpuExecutor) else 0
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        session.active_nbytes,
        executor.cached_nbytes(),
        buffers,
        len(wx.live_arrays()),
        resident,
    )


def some_graph(rng: np.random.Generator, weight: wx.Array) -> wx.Array:
    """A value of a few ops of random kinds and sizes, views and constants among them."""
    rows = int(rng.choice(SIZES))
    x = wx.array(rng.standard_normal((rows, 33), np.float32))
    for kind in rng.integers(0, 6, rng.integers(1, 6)):
        match kind:
            case 0:
                x = x * 0.5 + 1
            case 1:
                x = x @ weight
            case 2:
                x = wx.tanh(x.T).T
            case 3:
                x = wx.where(x > 0, x, -x)
            case 4:
                x = wx.concatenate([x[::2], x[1::2]])
            case _:
                x = x - x.mean(axis=-1, keepdims=True)
    return x


def evaluate(count: int, told: Callable[[str], None]) -> None:
    """So many graphs, each read or left."""
    rng = np.random.default_rng(0)
    weight = wx.array(rng.standard_normal((33, 33), np.float32) / 6)
    for number in range(count):
        x = some_graph(rng, weight)
        if number % 3:
            wx.eval(x)
        else:
            x.numpy()
        if number % max(count // 4, 1) == 0:
            del x
            told(f"{number} evals")


def draw(folder: Path, count: int, told: Callable[[str], None]) -> None:
    """So many pictures of a pipeline, each of another seed."""
    from wgpu_backend import images

    with images.load(folder) as pipeline:
        for number in range(count):
            pipeline.generate("a red circle", seed=number, num_inference_steps=2)
            if number % max(count // 4, 1) == 0:
                told(f"{number} pictures")


def say(line: str) -> None:
    """A line of the table, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run both, and compare the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evals", type=int, default=10_000)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--pipeline", type=Path, metavar="FOLDER", help="that draws pictures")
    parser.add_argument("--device")
    options = parser.parse_args()
    if options.device:
        wx.set_default_device(options.device)
    say(f"{'after':<16}{'arrays':>12}{'for reuse':>12}{'buffers':>9}{'live':>6}{'RSS MiB':>9}")

    def tell(what: str) -> tuple[int, int, int, int, float]:
        now = figures()
        say(f"{what:<16}{now[0]:>12,}{now[1]:>12,}{now[2]:>9}{now[3]:>6}{now[4]:>9.0f}")
        return now

    before = tell("start")
    evaluate(options.evals, tell)
    tell("all evals")
    if options.pipeline:
        draw(options.pipeline, options.pictures, tell)
    after = tell("end")
    same = (before[0], before[3]) == (after[0], after[3])
    say("memory of arrays is what it was" if same else "memory of arrays has grown")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
