"""Static costs of llama.cpp's Vulkan kernels, by the same compiler without a GPU.

llama-bench runs a model of two layers, without weights, on the null device: nothing is computed,
but each pipeline that it asks for is compiled, and written with its name. Trips of its loops are
not known here, so figures are those of the loop that multiplies most, without what comes before and
after it, which ours include.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu_costs import assembly, tools
from benchmarks.gpu_costs.models import SIZES, sparse_gguf

TIMEOUT = 300
LAYERS, VOCABULARY = 2, 32_000
# Kernels of the format that most of a model's weights have.
TYPES = {"q4_k_m": "q4_k"}
# Those that multiply matrices may ask for; without them what WGSL can ask for is left.
MATRIX_INSTRUCTIONS = "GGML_VK_DISABLE_COOPMAT"
_ONE = re.compile(r"v_(dual_)?(fma|fmac|mac|fmaak|fmamk|mad_f|mad_mix|mad_f16)")
_MATRIX = re.compile(r"v_wmma_\w+?_(\d+)x(\d+)x(\d+)")
WAVE_OF_MATRICES = 32


@dataclass(frozen=True, slots=True)
class Loop:
    """The loop of a kernel with the most multiplications.

    Parameters
    ----------
    instructions : int
    products : int
        Multiply-adds of a lane in it.
    """

    instructions: int
    products: int

    @property
    def a_product(self) -> float:
        """Instructions for each multiply-add."""
        return self.instructions / self.products


def products_of(instruction: str) -> int:
    """Count the multiply-adds of a lane in one instruction, or in two that issue together."""
    return sum(map(_products, instruction.split("::")))


def _products(instruction: str) -> int:
    name = instruction.split()[0]
    if matrix := _MATRIX.match(name):
        rows, columns, depth = map(int, matrix.groups())
        return rows * columns * depth // WAVE_OF_MATRICES
    if "dot4" in name:
        return 4
    if name.startswith(("v_pk_fma", "v_pk_mad", "v_dot2")):
        return 2
    return int(bool(_ONE.match(name)))


def loop_of(text: str) -> Loop | None:
    """Return the loop of an assembly with the most multiplications, or None."""
    blocks = assembly.blocks(text)
    found: list[Loop] = []
    for each in assembly.loops(blocks):
        body = [i for block in blocks[each.first : each.last + 1] for i in block.instructions]
        products = sum(map(products_of, body))
        if products:
            found.append(Loop(len(body), products))
    return max(found, key=lambda loop: (loop.products, -loop.instructions), default=None)


def figures(
    bench: Path, family: str, format: str, columns: Sequence[int], *, matrices: bool = False
) -> dict[int, float]:
    """Return the instructions per multiply-add of llama.cpp's products, by columns.

    Parameters
    ----------
    bench : Path
        llama-bench, built with its Vulkan backend.
    family : str
        As Mesa names it.
    format : str
        Of `benchmarks.gpu_costs.models.FORMATS`.
    columns : sequence of int
    matrices : bool
        Whether it may take matrix instructions, where the GPU has them.

    Raises
    ------
    tools.Missing
        A tool is not there.
    """
    found: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = _model(folder, format)
        for n in columns:
            work = folder / str(n)
            _run(bench, path, work, family, n, matrices)
            loops = _loops(work / "out", TYPES.get(format, format), n)
            if loops:
                found[n] = min(loop.a_product for loop in loops)
    return found


def _model(folder: Path, format: str) -> Path:
    sizes = replace(SIZES["8b"], layers=LAYERS, vocabulary=VOCABULARY)
    return sparse_gguf(folder / "model.gguf", sizes, format, tokenizer="no_vocab")


def _run(bench: Path, path: Path, work: Path, family: str, n: int, matrices: bool) -> None:
    """Run llama-bench for its kernels; ignore its result, since nothing is computed."""
    env = {**tools.environment(work, family), "GGML_VK_DEBUG_MARKERS": "1"}
    libraries = (str(bench.parent), env.get("LD_LIBRARY_PATH"))
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    if not matrices:
        env[MATRIX_INSTRUCTIONS] = "1"
    tokens = ["-p", "0", "-n", "1"] if n == 1 else ["-p", str(n), "-n", "0"]
    words = [bench, "-m", path, *tokens, "-r", "1", "--no-warmup", "-ngl", "99", "-fa", "1"]
    subprocess.run(words, env=env, capture_output=True, check=False, timeout=TIMEOUT)


def _loops(folder: Path, type: str, n: int) -> Iterator[Loop]:
    """Return the loops of products with weights of a type; for one column the smallest."""
    found: list[tuple[str, Loop]] = []
    for path in folder.glob("*.name"):
        name, loop = path.read_text(), loop_of(path.with_suffix(".s").read_text())
        if loop and _multiplies(name, type):
            found.append((name, loop))
    vectors = [loop for name, loop in found if "vec" in name]
    most = max((loop.products for loop in vectors), default=0)
    # The head multiplies the last token of a prompt alone.
    few = [loop for loop in vectors if n == 1 or loop.products == most]
    many = [loop for name, loop in found if "vec" not in name]
    return iter(many or few)


def _multiplies(name: str, type: str) -> bool:
    """Return whether a kernel of this name is a product with weights of a type."""
    if name.startswith("mul_mat_vec_"):
        return name.startswith(f"mul_mat_vec_{type}_")
    # Kernels of f16 arithmetic take any format, by a parameter that is no part of the name.
    return name.startswith((f"matmul_{type}_", "matmul_quant_" if type != "f16" else "matmul_f16_"))
