import os
import subprocess
import sys

import pytest

from tests.patience import PATIENCE

WIDTHS = {"128": 4, "256": 8}
SCRIPT = """\
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.calibration.self_test import self_test

executor = make_executor("wgpu", BackendParams(device={device!r}, self_test=False))
wrong = [str(finding) for finding in self_test(executor) if not finding.passed]
print(executor.capabilities.lanes, wrong)
"""


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("width", WIDTHS)
def test_kernels_suit_the_width_of_the_rasteriser(adapter, tmp_path, width):
    if "llvmpipe" not in adapter.name or adapter.api.lower() != "vulkan":
        pytest.skip(f"needs lavapipe, whose width can be chosen, not {adapter.name}")
    env = {**os.environ, "LP_NATIVE_VECTOR_WIDTH": width, "MESA_SHADER_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", SCRIPT.format(device=adapter.id)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE)

    assert done.returncode == 0, done.stderr
    if width == "256" and done.stdout.startswith("4"):
        pytest.skip("the processor has vectors of four at most")
    assert done.stdout.split("\n")[0] == f"{WIDTHS[width]} []"
