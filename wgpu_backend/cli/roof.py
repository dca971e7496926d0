"""The read bandwidth of a device: the roof of a roofline model of decoding."""

from __future__ import annotations

from contextlib import ExitStack

from wgpu_backend.cli.clocks import at_full_clock
from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.memory import Purpose
from wgpu_backend.device.program import Program
from wgpu_backend.device.wgsl import module

# Larger than any cache: the last-level caches of large GPUs reach 96 MiB.
NBYTES = 512 << 20
SOFTWARE_NBYTES = 128 << 20
VECTOR_NBYTES = 16
VECTORS_A_THREAD = 32
WORKGROUP = 256
RUNS = 8


def read_roof(device: Device) -> float:
    """Measure the bandwidth as the fastest of several reads of a large buffer.

    Returns
    -------
    float
        Bytes per second.
    """
    nbytes = SOFTWARE_NBYTES if device.capabilities.software else NBYTES
    groups = _groups(min(nbytes, device.capabilities.max_binding_nbytes))
    threads = groups * WORKGROUP
    nbytes = threads * VECTORS_A_THREAD * VECTOR_NBYTES
    with ExitStack() as stack:

        def buffer(size: int, purpose: Purpose) -> Buffer:
            made = device.buffer(size, purpose=purpose, label="roof")
            stack.callback(made.release)
            return made

        program = _program(
            device,
            buffer(nbytes, "weights"),
            buffer(threads * VECTOR_NBYTES, "activations"),
            buffer(WORKGROUP, "params"),
            groups,
        )
        stack.callback(program.close)
        at_full_clock(program.timed, device.capabilities)
        return nbytes / min(program.timed()[0].seconds for _ in range(RUNS))


def _groups(nbytes: int) -> int:
    return nbytes // (WORKGROUP * VECTORS_A_THREAD * VECTOR_NBYTES)


def _program(device: Device, x: Buffer, y: Buffer, params: Buffer, groups: int) -> Program:
    threads = groups * WORKGROUP
    kernel = module.load("roof_read", {"WG": WORKGROUP}, trusted=True)
    packed = kernel.pack({"vectors": threads * VECTORS_A_THREAD, "threads": threads})
    device.clear(x)
    device.write(params, packed)
    bindings = (Binding(x), Binding(y), Binding(params, 0, len(packed)))
    dispatch = Dispatch(device.pipeline(kernel), bindings, (groups, 1, 1), "roof")
    return device.program([dispatch], label="roof")
