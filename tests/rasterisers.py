"""Kernels of rasterisers on whatever device there is."""

import dataclasses

from wgpu_backend.kernels import complete
from wgpu_backend.ml.wgpu.executor import WgpuExecutor


def as_rasteriser(executor: WgpuExecutor) -> WgpuExecutor:
    """The executor where its device is a rasteriser, else one that takes a GPU for a rasteriser.

    That one has no subgroups, as kernels of rasterisers want ones of other sizes than GPUs have.
    """
    if executor.capabilities.software:
        return executor
    told = dataclasses.replace(
        executor.device.capabilities, software=True, subgroups=False, lanes=0
    )
    return executor.as_if(complete(told))
