"""Fixtures of the kernels for GPUs."""

import dataclasses

import pytest

from wgpu_backend.device import dawn
from wgpu_backend.device.adapters import Devices
from wgpu_backend.device.device import Device
from wgpu_backend.kernels import complete
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes
from wgpu_backend.ml.wgpu.executor import WgpuExecutor


@pytest.fixture(scope="session")
def eight_lanes(executors) -> WgpuExecutor:
    """`wide`, of subgroups of eight lanes or more."""
    executor = executors("wide")
    if not has_eight_lanes(executor.capabilities):
        pytest.skip("needs subgroups of eight lanes")
    return executor


@pytest.fixture(scope="package")
def units():
    """An executor with matrix units: of a GPU, or a rasteriser that is taken for one."""
    best = Devices()[0]
    if "dawn" not in best.implementations or not dawn.is_installed():
        pytest.skip("needs wgpudawn and an adapter that it opens")
    if best.matrix is None:
        pytest.skip(f"{best.name} has no matrix units (lavapipe has them from Mesa 26 on)")
    executor = WgpuExecutor(Device.open(best, implementation="dawn"))
    known = dataclasses.replace(
        executor.device.capabilities, software=False, lanes=0, fused=False, integer_dot=False
    )
    yield executor.as_if(complete(known))
    executor.close()
