"""Compare convolutions of image models with products of the same size, by AMD's compiler.

::

    python -m benchmarks.gpu_costs.convolutions [FAMILY …]

For each shape: registers, waves, instructions that a lane executes, and multiply-adds for each of
them, of the convolution, of the product that has as many, and their ratio.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu_costs import assembly, internals, tools
from benchmarks.gpu_costs.collect import Compiler
from benchmarks.gpu_costs.models import FORMATS, SIZES, sparse_gguf
from benchmarks.gpu_costs.nir_run import Run, Setting
from wgpu_backend.dtypes import named
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor

# Height, width, channels, outputs, extent of the kernel: of Stable Diffusion's UNet and VAE.
SHAPES = (
    (64, 64, 320, 320, 3),
    (32, 32, 640, 640, 3),
    (128, 128, 512, 512, 3),
    (512, 512, 128, 128, 3),
    (64, 64, 320, 320, 1),
)


def figures(compiler: Compiler, backend: Backend, result: Tensor, sums: int) -> dict[str, Any]:
    """Return the compiler's figures of the kernel that makes a tensor of so many products."""
    [kernel] = internals.kernels_of(backend, result)
    done = compiler(kernel.shader)
    wave, threads = done.statistics["Subgroup size"], done.program.threads
    binding = internals.params_binding(kernel.shader)
    trips = Run(done.program, Setting(kernel.params, binding, kernel.groups, wave, {})).run()
    depths = [loop.depth for loop in done.program.loops]
    executed = assembly.executed(done.assembly, trips, depths) or math.nan
    return {
        "kernel": kernel.shader.label.partition("(")[0],
        "vgprs": done.statistics["VGPRs"],
        "spills": done.statistics["Spilled VGPRs"] + done.statistics["Spilled SGPRs"],
        "waves": done.statistics["Subgroups per SIMD"],
        "instructions": executed,
        "per_instruction": sums / (executed * math.prod(kernel.groups) * threads),
    }


def collect(folder: Path, dtype: str) -> list[dict[str, Any]]:
    """Collect figures of all shapes, in pairs."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        path = sparse_gguf(Path(name) / "model.gguf", SIZES["8b"], FORMATS[0])
        with internals.opened(path, exact=True, coarse=False, rounded=False) as backend:
            compiler = Compiler(backend, folder)
            for height, width, channels, outputs, k in SHAPES:
                with Context(backend.executor) as ctx:
                    x = ctx.zeros(1, height, width, channels)
                    w = ctx.zeros(outputs, k, k, channels, dtype=named(dtype))
                    y = x.conv2d(w, paddings=(k // 2, k // 2))
                    columns = ctx.zeros(height * width, k * k * channels)
                    product = w.reshape(outputs, -1).mulmat(columns)
                    sums = y.spec.size * k * k * channels
                    rows += [
                        {
                            "shape": f"{height}×{width}×{channels} → {outputs}, {k}×{k}",
                            **figures(compiler, backend, each, sums),
                        }
                        for each in (y, product)
                    ]
    return rows


def main(families: list[str]) -> None:
    """Print a table for each family of GPUs."""
    for family in families or ["navi31", "vega10"]:
        with tempfile.TemporaryDirectory() as name:
            out = Path(name) / "rows.json"
            words = ["benchmarks.gpu_costs.convolutions", "--collect", str(out)]
            message = tools.run(words, Path(name), family)
            if message:
                print(message, file=sys.stderr)
            rows = json.loads(out.read_text("utf-8"))
        print(f"\n{family}: VGPRs, spills, waves, instructions a lane, multiply-adds for each")
        for conv, product in zip(rows[::2], rows[1::2], strict=True):
            ratio = conv["per_instruction"] / product["per_instruction"]
            print(f"{conv['shape']}: {ratio:.2f} of the product's")
            for row in (conv, product):
                print(
                    f"    {row['kernel']:16} {row['vgprs']:4} {row['spills']:3} {row['waves']:3}"
                    f"  {row['instructions']:9.0f}  {row['per_instruction']:.3f}"
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--collect"]:
        found = collect(Path(os.environ["GPU_COSTS_OUT"]), "f32")
        Path(sys.argv[2]).write_text(json.dumps(found), "utf-8")
    else:
        main(sys.argv[1:])
