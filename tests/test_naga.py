"""The WGSL texts before naga's back ends for Metal and D3D12, which no other test reaches.

On Linux wgpu has its back end for Vulkan alone. `.ci/naga.py` fetches the others, built for Node.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import hardware
from tests.test_shaders import CASES
from wgpu_backend.device.wgsl.limits import blank_comments
from wgpu_backend.device.wgsl.module import load

NODE = shutil.which("node") or ""
NAGA = Path(__file__).parents[1] / "build" / "naga"
SCRIPT = Path(__file__).with_name("naga.mjs")
BACKENDS = ("metal", "hlsl")
# The build is of naga 25, which has no dot products of packed bytes. This is what they mean.
DOT = re.compile(r"\bdot4([IU])8Packed\b")
SPELLED = {
    "I": "fn dot4I8Packed(a: u32, b: u32) -> i32 { return dot(unpack4xI8(a), unpack4xI8(b)); }",
    "U": "fn dot4U8Packed(a: u32, b: u32) -> u32 { return dot(unpack4xU8(a), unpack4xU8(b)); }",
}
# That is what it says of `atomicCompareExchangeWeak`, which later ones translate.
UNKNOWN = "hlsl: Failed to generate HLSL: atomic CompareExchange"

needs_naga = pytest.mark.skipif(
    not (NODE and NAGA.is_dir()),
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


@needs_naga
@pytest.mark.slow
def test_kernels_of_whole_models_pass_the_back_ends_for_metal_and_hlsl(full, tmp_path):
    assert faults(hardware.every_shader(full.info, tmp_path)) == []


@needs_naga
@pytest.mark.slow
def test_every_shader_passes_the_back_ends_for_metal_and_hlsl():
    assert faults([load(*case) for case in CASES]) == []
