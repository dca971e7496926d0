"""A probe for the width of a software rasteriser, which drivers do not report."""

from __future__ import annotations

import numpy as np

from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.device import Device
from wgpu_backend.device.wgsl.module import load


def lanes_together(device: Device) -> int:
    """Measure how many of eight threads form one subgroup, for `Capabilities.lanes`.

    LLVM's rasteriser has eight lanes with AVX, and four on an older or another processor.
    """
    if not (device.capabilities.software and device.capabilities.subgroups):
        return 0
    counted = device.buffer(4, purpose="activations", label="lanes")
    dispatch = Dispatch(device.pipeline(load("lanes")), (Binding(counted),), (1, 1, 1))
    program = device.program([dispatch], reads=[Binding(counted)], label="lanes")
    try:
        return int(np.frombuffer(program.replay().wait()[0], np.uint32)[0])
    finally:
        program.close()
        counted.release()
