"""Devices that this family's kernels are for."""

import pytest

from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.ml.wgpu.executor import WgpuExecutor


@pytest.fixture(scope="session")
def shuffling(full: WgpuExecutor) -> WgpuExecutor:
    """A rasteriser whose eight lanes shuffle values: it keeps weights in textures."""
    return _shuffling(full)


@pytest.fixture(scope="session")
def shuffling_split(executors) -> WgpuExecutor:
    """`shuffling`, where weights of more than 64 KiB lie in several parts."""
    return _shuffling(executors("split"))


def _shuffling(executor: WgpuExecutor) -> WgpuExecutor:
    if not shuffles(executor.capabilities):
        pytest.skip(f"needs a rasteriser whose lanes are eight, not {executor.info.name}")
    return executor
