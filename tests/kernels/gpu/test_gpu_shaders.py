"""Kernels of GPUs compile with what launches choose, beyond what `test_shaders.py` tries."""

import pytest

from tests.test_shaders import PREPARED
from tests.test_shaders import test_a_shader_compiles_within_the_default_limits as compiles
from wgpu_backend.shader import load

TOKEN = "kernels/gpu/attention_token"
TYPES = [("f16", "f32"), ("f32", "f16")]
ROPE = {**PREPARED, "before": "kernels/gpu/prologue/rope_put"}
CASES = [(TOKEN, {**ROPE, "k": f"state4/{k}", "v": f"state4/{v}"}) for k, v in TYPES]
CASES += [
    (
        TOKEN,
        {
            **PREPARED,
            "before": "kernels/gpu/prologue/norm_rope_put",
            "k": "state4/f16",
            "v": "state4/f16",
        },
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: load(*case).label)
def test_a_kernel_compiles(gpu, case):
    compiles(gpu, case)
