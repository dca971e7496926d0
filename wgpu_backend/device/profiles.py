# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Profiles of a device: all useful features of an adapter, or WebGPU's defaults."""

from __future__ import annotations

import wgpu

from wgpu_backend.device.faults import Translated
from wgpu_backend.device.integer_dot import has_integer_dot
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo, Profile

# Features that kernels, timings or uploads use where they are.
USEFUL_FEATURES = (
    "shader-f16",
    "subgroup",
    "subgroup-barrier",
    "immediates",
    "shader-int64",
    "shader-float32-atomic",
    "timestamp-query",
    "timestamp-query-inside-encoders",
    "timestamp-query-inside-passes",
    "mappable-primary-buffers",
)
# The limits that every WebGPU implementation has, from the specification's table; those that
# concern textures and vertices do not matter here.
BASELINE_LIMITS = {
    "max-bind-groups": 4,
    "max-bindings-per-bind-group": 1000,
    "max-dynamic-uniform-buffers-per-pipeline-layout": 8,
    "max-dynamic-storage-buffers-per-pipeline-layout": 4,
    "max-storage-buffers-per-shader-stage": 8,
    "max-uniform-buffers-per-shader-stage": 12,
    "max-uniform-buffer-binding-size": 64 << 10,
    "max-storage-buffer-binding-size": 128 << 20,
    "min-uniform-buffer-offset-alignment": 256,
    "min-storage-buffer-offset-alignment": 256,
    "max-buffer-size": 256 << 20,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroups-per-dimension": 65535,
    "max-immediate-size": 0,
}


def request(info: DeviceInfo, adapter: wgpu.GPUAdapter, profile: Profile) -> wgpu.GPUDevice:
    """Open an adapter with the features and limits of a profile.

    Returns
    -------
    wgpu.GPUDevice

    Raises
    ------
    DeviceError
        The profile is unknown, or the driver refuses.
    """
    if profile not in ("full", "baseline"):
        raise DeviceError(f"device {info.id}: profile {profile!r}, known are full and baseline")
    full = profile == "full"
    features = [f for f in USEFUL_FEATURES if f in adapter.features] if full else []
    limits: dict[str, int | None] = {**(info.limits if full else BASELINE_LIMITS)}
    with Translated(f"device {info.id}", str):
        return adapter.request_device_sync(required_features=features, required_limits=limits)


def capabilities_of(info: DeviceInfo, gpu: wgpu.GPUDevice) -> Capabilities:
    """Read what kernels may use from an opened device."""
    limits: dict[str, int] = gpu.limits
    alignment = max(
        limits["min-storage-buffer-offset-alignment"],
        limits["min-uniform-buffer-offset-alignment"],
    )
    return Capabilities(
        software=info.kind == "software",
        subgroups="subgroup" in gpu.features,
        f16="shader-f16" in gpu.features,
        fused=info.kind != "software",
        int64="shader-int64" in gpu.features,
        few_registers=info.vendor == "Intel" and info.kind != "software",
        integer_dot=has_integer_dot(info),
        timestamps="timestamp-query" in gpu.features,
        max_binding_nbytes=limits["max-storage-buffer-binding-size"],
        max_uniform_nbytes=limits["max-uniform-buffer-binding-size"],
        max_buffer_nbytes=limits["max-buffer-size"],
        max_storage_bindings=limits["max-storage-buffers-per-shader-stage"],
        max_workgroup_nbytes=limits["max-compute-workgroup-storage-size"],
        max_workgroup_invocations=limits["max-compute-invocations-per-workgroup"],
        max_groups=limits["max-compute-workgroups-per-dimension"],
        binding_alignment=alignment,
    )
