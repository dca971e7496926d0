"""Hand-made shaders for the tests of the device floor, and buffers to feed them."""

from __future__ import annotations

import numpy as np

from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.pipelines import Pipeline
from wgpu_backend.device.wgsl.module import BindingDecl, Shader

DOUBLE = """\
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;

@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&b)) {
        b[id.x] = a[id.x] * 2.0;
    }
}
"""
ADD_PARAM = """\
struct Params { value: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;

@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&b)) {
        b[id.x] = b[id.x] + params.value;
    }
}
"""
_READ_WRITE = (BindingDecl("a", 0, "read"), BindingDecl("b", 1, "read_write"))


def shader(
    text: str = DOUBLE,
    bindings: tuple[BindingDecl, ...] = _READ_WRITE,
    *,
    label: str = "double",
    trusted: bool = False,
) -> Shader:
    origins = tuple(f"shaders/{label}.wgsl:{11 + n}" for n in range(len(text.splitlines())))
    return Shader(label=label, text=text, origins=origins, bindings=bindings, trusted=trusted)


def body(statements: str, before: str = "") -> Shader:
    """A shader with these statements in its main, over `a: array<i32>`."""
    text = (
        f"{before}\n@group(0) @binding(0) var<storage, read_write> a: array<i32>;\n"
        f"@compute @workgroup_size(1)\nfn main() {{\n{statements}\n}}\n"
    )
    return shader(text, (BindingDecl("a", 0, "read_write"),), label="made")


def floats(device: Device, count: int, *, start: float = 0.0) -> Buffer:
    """A buffer of consecutive numbers."""
    buffer = device.buffer(4 * count, purpose="activations")
    device.write(buffer, np.arange(start, start + count, dtype=np.float32))
    return buffer


def double(pipeline: Pipeline, a: Buffer, b: Buffer, label: str = "") -> Dispatch:
    """One launch of DOUBLE over all of `b`."""
    groups = -(-b.nbytes // 32)
    return Dispatch(pipeline, (Binding(a), Binding(b)), (groups, 1, 1), label)


def numbers(data: bytes) -> list[float]:
    return np.frombuffer(data, np.float32).tolist()
