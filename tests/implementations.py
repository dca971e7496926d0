"""Which WebGPU implementation the tests run on: WGPU_BACKEND_IMPLEMENTATION, as users set it."""

import os

import pytest

ON_DAWN = os.environ.get("WGPU_BACKEND_IMPLEMENTATION") == "dawn"
wgpu_native_only = pytest.mark.skipif(
    ON_DAWN,
    reason="about wgpu-native's own texts, counters or private calls; the tests are on Dawn",
)
