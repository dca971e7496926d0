"""Adapters, devices, buffers, pipelines and programs: the one floor that knows wgpu."""

from __future__ import annotations

from wgpu_backend.device.adapters import DeviceList, Devices
from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.memory import MemoryReport, PurposeUse
from wgpu_backend.device.pending import Pending
from wgpu_backend.device.pipelines import Pipeline
from wgpu_backend.device.program import Program
from wgpu_backend.device.queue import Counters
from wgpu_backend.device.timings import Timing

__all__ = [
    "Binding",
    "Buffer",
    "Counters",
    "Device",
    "DeviceList",
    "Devices",
    "Dispatch",
    "MemoryReport",
    "Pending",
    "Pipeline",
    "Program",
    "PurposeUse",
    "Timing",
]
