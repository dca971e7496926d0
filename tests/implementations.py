"""Which WebGPU implementation the tests run on: WGPU_BACKEND_IMPLEMENTATION, as users set it."""

import os
from typing import TypeVar

import pytest

T = TypeVar("T")
ON_DAWN = os.environ.get("WGPU_BACKEND_IMPLEMENTATION") == "dawn"
wgpu_native_only = pytest.mark.skipif(
    ON_DAWN,
    reason="about wgpu-native's own texts, counters or private calls; the tests are on Dawn",
)


def by_compiler(naga: T, tint: T) -> T:
    """What wgpu-native's compiler says of a text, or Dawn's."""
    return tint if ON_DAWN else naga
