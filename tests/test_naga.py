"""Compile the shaders with naga's back ends for Metal and D3D12, which no other test runs.

On Linux wgpu has its back end for Vulkan alone. `.ci/naga.py` fetches the others, built for Node.
That build does not know matrix units. A newer naga checks kernels that use them where Rust and
Debian's package of it are installed: the script builds a program with it.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import hardware
from tests.test_shaders import CASES
from wgpu_backend.device.native import enable
from wgpu_backend.device.wgsl.limits import blank_comments
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.dtypes import F16, Q4_0, Q4_K, Q6_K
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit

matrix = pytest.importorskip("wgpu_backend.kernels.gpu.matrix", reason="the kernels with units")
attention = pytest.importorskip("wgpu_backend.kernels.gpu.attention_matrix")
convolutions = pytest.importorskip("wgpu_backend.kernels.gpu.conv_matrix")

NODE = shutil.which("node") or ""
NAGA = Path(__file__).parents[1] / "build" / "naga"
SCRIPT = Path(__file__).with_name("naga.mjs")
BACKENDS = ("metal", "hlsl")
ATTENTION = "kernels/gpu/attention_matrix"
F16_KEYS = dict.fromkeys("kv", "formats/vec4/f16")
# The build is of naga 25, which has no dot products of packed bytes. This is what they mean.
DOT = re.compile(r"\bdot4([IU])8Packed\b")
SPELLED = {
    "I": "fn dot4I8Packed(a: u32, b: u32) -> i32 { return dot(unpack4xI8(a), unpack4xI8(b)); }",
    "U": "fn dot4U8Packed(a: u32, b: u32) -> u32 { return dot(unpack4xU8(a), unpack4xU8(b)); }",
}
# That is what it says of `atomicCompareExchangeWeak`, which later ones translate.
UNKNOWN = "hlsl: Failed to generate HLSL: atomic CompareExchange"

TRANSLATOR = NAGA / "naga"

needs_translator = pytest.mark.skipif(
    not TRANSLATOR.exists(),
    reason="needs naga 29 or newer in build/naga/naga: .ci/naga.py build/naga, with Debian's rustc "
    "and librust-naga-dev",
)
needs_naga = pytest.mark.skipif(
    not (NODE and (NAGA / "wgsl_wasm_transpiler_bg.wasm").exists()),
    reason="needs node, and naga in build/naga: .ci/naga.py build/naga",
)


def faults_of(texts):
    """What the back ends say of each text."""
    known = [
        t + "".join(SPELLED[kind] for kind in sorted(set(DOT.findall(blank_comments(t)))))
        for t in texts
    ]
    words = [NODE, str(SCRIPT), str(NAGA), *BACKENDS]
    done = subprocess.run(
        words, input=json.dumps(known), capture_output=True, text=True, check=True
    )
    return [[f for f in found if f != UNKNOWN] for found in json.loads(done.stdout)]


def faults(shaders):
    found = zip(shaders, faults_of([s.text for s in shaders]), strict=True)
    return [f"{s.label}: {fault}" for s, some in found for fault in some]


@needs_naga
def test_what_the_back_ends_do_not_take_is_found():
    sound, unsound = "@compute @workgroup_size(1) fn main() {}", "fn main() -> u32 { return 1.5; }"
    assert [len(found) for found in faults_of([sound, unsound])] == [0, len(BACKENDS)]


def refusals(texts):
    """What a newer naga says of each text that uses matrix units."""
    given = "\0".join(enable(text) for text in texts)
    done = subprocess.run([TRANSLATOR], input=given, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")


def kernels_with_units(side):
    """Kernels for matrix units of naga, with every size of their tiles."""
    unit = MatrixUnit(side, side, side, 32, "naga")
    known = Capabilities(
        f16=True, matrix=unit, max_workgroup_nbytes=64 << 10, max_workgroup_invocations=1024
    )
    for blocks in matrix.BLOCKS:
        for dtype in (F16, Q4_0, Q4_K, Q6_K):
            for gated in (False, True):
                choices = matrix.product_choices(blocks, unit, dtype, 1 + gated)
                yield load(
                    matrix.SHADER, {**choices, "GATED": gated, "SPLIT": not gated}, trusted=True
                )
        choices = convolutions.conv_choices(blocks, unit, F16)
        yield load("kernels/gpu/conv_matrix", choices, trusted=True)
    sizes = [(size, 1) for size in attention.SIZES]
    sizes += [(size, shares) for _, size, shares in attention.SHARED if shares > 1]
    for (rows, keys), shares in sizes:
        for vec4s in (4, 16, 32, 40):
            tile = attention.MatrixTile(rows, keys, vec4s, vec4s, unit, shares)
            if tile.suits(known):
                plain = {"source": "lib/attention/plain_rows", **attention.PLAIN, **F16_KEYS}
                yield load(ATTENTION, {**tile.choices(), **plain}, trusted=True)
                for kind in ("f16", "q8_0", "q4_0"):
                    cache = dict.fromkeys("kv", f"kernels/gpu/lib/cache_{kind}")
                    yield load(ATTENTION, {**tile.choices(), **cache}, trusted=True)


@needs_translator
def test_a_newer_naga_takes_what_is_sound():
    sound, unsound = "@compute @workgroup_size(1) fn main() {}", "fn main() -> u32 { return 1.5; }"
    found = refusals([sound, unsound])
    assert found[0] == ""
    assert "1.5" in found[1]


@needs_translator
@pytest.mark.parametrize("side", [8, 16])
def test_kernels_with_matrix_units_pass_a_newer_naga(side):
    shaders = list(kernels_with_units(side))
    found = zip(shaders, refusals([s.text for s in shaders]), strict=True)
    assert [f"{s.label}: {fault}" for s, fault in found if fault] == []


@needs_naga
@pytest.mark.slow
def test_kernels_of_whole_models_pass_the_back_ends_for_metal_and_hlsl(full, tmp_path):
    assert faults(hardware.every_shader(full.info, tmp_path)) == []


@needs_naga
@pytest.mark.slow
def test_every_shader_passes_the_back_ends_for_metal_and_hlsl():
    assert faults([load(*case) for case in CASES]) == []
