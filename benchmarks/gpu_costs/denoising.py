"""Static cost of a denoising step of Stable Diffusion 1.5, with and without matrix units.

::

    python -m benchmarks.gpu_costs.denoising [FAMILY]

Lane-instructions of the UNet's convolutions, products and attention for latents of 64 x 64. Without
units they are of whole kernels, as `gpu_costs` has them. With units they are of main loops (see
`units`), of whole tiles, with what does not take units as before. Norms and sums are left out.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_costs import assembly, internals, tools, units
from benchmarks.gpu_costs.collect import Compiler
from benchmarks.gpu_costs.models import FORMATS, SIZES, sparse_gguf
from benchmarks.gpu_costs.nir_run import Run, Setting
from wgpu_backend.dtypes import F16
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor

# Kind and sizes: conv (side of the result, step, channels, outputs, extent), product (columns,
# values, outputs), attention (tokens, keys, columns of each of eight heads).
Layer = tuple[str, tuple[int, ...]]
HEADS, PROMPT, PROMPT_COLS = 8, 77, 768
TILE = 128  # rows and columns of the largest tile of units
PAIR_TILE = 64


def layers() -> Counter[Layer]:
    """Count the layers of the UNet (Rombach et al. 2022; sizes of its version 1.5)."""
    found: Counter[Layer] = Counter()
    levels = ((64, 320), (32, 640), (16, 1280), (8, 1280))
    inputs = 320
    for side, channels in levels:
        for _ in range(2):
            found.update(_resnet(side, inputs, channels))
            found.update(_attention(side, channels) if side > 8 else ())
            inputs = channels
        if side > 8:
            found["conv", (side // 2, 2, channels, channels, 3)] += 1
    found.update([*_resnet(8, 1280, 1280)] * 2)
    found.update(_attention(8, 1280))
    joined = ((2560, 2560, 2560), (2560, 2560, 1920), (1920, 1280, 960), (960, 640, 640))
    for (side, channels), widths in zip(reversed(levels), joined, strict=True):
        for width in widths:
            found.update(_resnet(side, width, channels))
            found.update(_attention(side, channels) if side > 8 else ())
        if side < 64:
            found["conv", (2 * side, 1, channels, channels, 3)] += 1
    return found


def _resnet(side: int, inputs: int, channels: int) -> Iterator[Layer]:
    yield "conv", (side, 1, inputs, channels, 3)
    yield "conv", (side, 1, channels, channels, 3)
    if inputs != channels:
        yield "conv", (side, 1, inputs, channels, 1)


def _attention(side: int, channels: int) -> Iterator[Layer]:
    tokens = side * side
    yield from [("conv", (side, 1, channels, channels, 1))] * 2
    yield from [("product", (tokens, channels, channels))] * 6
    yield from [("product", (PROMPT, PROMPT_COLS, channels))] * 2
    yield "product", (tokens, channels, 8 * channels)
    yield "product", (tokens, 4 * channels, channels)
    yield "attention", (tokens, tokens, channels // HEADS)
    yield "attention", (tokens, PROMPT, channels // HEADS)


def build(context: Context, layer: Layer) -> Tensor:
    """Build a layer."""
    kind, sizes = layer
    if kind == "conv":
        side, step, channels, outputs, extent = sizes
        x = context.zeros(1, side * step, side * step, channels)
        weight = context.zeros(outputs, extent, extent, channels, dtype=F16)
        return x.conv2d(weight, strides=(step, step), paddings=(extent // 2, extent // 2))
    if kind == "product":
        columns, values, outputs = sizes
        return context.zeros(outputs, values, dtype=F16).mulmat(context.zeros(columns, values))
    tokens, keys, cols = sizes
    q = context.zeros(tokens, HEADS, cols)
    k, v = (context.zeros(keys, HEADS, cols) for _ in "kv")
    return q.scaled_dot_product_attention(k, v, scale=cols**-0.5)


def without_units(backend: Backend, compiler: Compiler, layer: Layer) -> float:
    """Count the instructions of all lanes that a layer's kernels execute."""
    total = 0.0
    for each in internals.graph_dispatches(backend, lambda context: build(context, layer)):
        if each.op == "fill":
            continue
        done = compiler(each.shader)
        wave, binding = done.statistics["Subgroup size"], internals.params_binding(each.shader)
        trips = Run(done.program, Setting(each.params, binding, each.groups, wave, {})).run()
        depths = [loop.depth for loop in done.program.loops]
        executed = assembly.executed(done.assembly, trips, depths) or math.nan
        total += executed * math.prod(each.groups) * done.program.threads
    return total


def with_units(layer: Layer, costs: dict[str, float]) -> float | None:
    """Count a layer's instructions by the figures of main loops; None if it takes no units."""
    kind, sizes = layer
    if kind == "attention":
        tokens, keys, cols = sizes
        name = f"attention plain, {cols} columns"
        pairs = _whole(tokens, PAIR_TILE) * _whole(keys, PAIR_TILE) * HEADS
        return pairs * costs[name] if name in costs else None
    if kind == "product":
        columns, values, outputs = sizes
        return _whole(columns, TILE) * _whole(outputs, TILE) * values / costs["product f16"]
    side, _, channels, outputs, extent = sizes
    values = channels * extent**2
    return _whole(side**2, TILE) * _whole(outputs, TILE) * values / costs["convolution f16"]


def _whole(count: int, tile: int) -> int:
    return -(-count // tile) * tile


def collect(folder: Path) -> list[tuple[Layer, int, float]]:
    """List the layers, how often each is there, and its cost without units."""
    with tempfile.TemporaryDirectory() as name:
        path = sparse_gguf(Path(name) / "model.gguf", SIZES["tiny"], FORMATS[-1])
        with internals.opened(path, exact=False, coarse=False, rounded=False) as backend:
            compiler = Compiler(backend, folder)
            return [
                (layer, count, without_units(backend, compiler, layer))
                for layer, count in layers().items()
            ]


def main(family: str) -> None:
    """Print the costs by kind of layer."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "rows.json"
        words = ["benchmarks.gpu_costs.denoising", "--collect", str(out)]
        if message := tools.run(words, Path(name) / "without", family):
            sys.stderr.write(f"{message}\n")
        rows: list[Any] = json.loads(out.read_text("utf-8"))
        made = Path(name) / "units"
        made.mkdir()
        costs = {row.name: float(row.cost.split()[0]) for row in units.collected(family, made)}
    totals: dict[str, list[float]] = {}
    for (kind, sizes), count, before in rows:
        after = with_units((kind, tuple(sizes)), costs)
        for name in (kind, "all"):
            total = totals.setdefault(name, [0.0, 0.0, 0.0])
            total[0] += count * before
            total[1] += count * (before if after is None else after)
            total[2] += count * before * (after is None)
    sys.stdout.write(f"{family}: 10^9 lane-instructions of a step, without and with units\n")
    for name, (before, after, left) in totals.items():
        line = f"{before / 1e9:8.1f} {after / 1e9:8.1f}  {after / before:.2f}"
        sys.stdout.write(f"    {name:10} {line}, {left / 1e9:.1f} takes none\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--collect"]:
        found = collect(Path(os.environ["GPU_COSTS_OUT"]))
        Path(sys.argv[2]).write_text(json.dumps(found), "utf-8")
    else:
        main(*sys.argv[1:2] or ["navi31"])
