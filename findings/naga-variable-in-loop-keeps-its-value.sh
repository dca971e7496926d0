#!/bin/sh
# naga: `var x: f32;` inside a loop keeps the value of the previous iteration
#
# Versions: wgpu 0.32.0 (wgpu-native 29), seen with Vulkan on lavapipe of Mesa 25.0.7. Needs an adapter.
# WGSL says that a variable without an initialiser is zero each time its declaration runs. naga moves
# the variable to the start of the function and initialises it there once, so that a sum per iteration
# becomes a running sum. With `= 0.0` written out, the same shader is right. Arrays behave alike.
. "$(dirname "$0")/common.sh"
install wgpu==0.32.0 numpy==2.4.6
expect 'declared without a value: [1.0, 2.0, 3.0, 4.0]
declared with `= 0.0`: [1.0, 1.0, 1.0, 1.0]' <<'END'
import numpy as np
import wgpu

device = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()


def run(value):
    code = (
        "@group(0) @binding(0) var<storage, read_write> out: array<f32>;\n"
        "@compute @workgroup_size(1) fn main() {\n"
        f"  for (var i = 0u; i < 4u; i++) {{ var x: f32{value}; x += 1.0; out[i] = x; }}\n"
        "}\n"
    )
    buffer = device.create_buffer(size=16, usage="STORAGE|COPY_SRC")
    module = device.create_shader_module(code=code)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": {"buffer": buffer}}],
    )
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(1)
    compute.end()
    device.queue.submit([encoder.finish()])
    return np.frombuffer(device.queue.read_buffer(buffer), "f4").tolist()


print("declared without a value:", run(""))
print("declared with `= 0.0`:", run(" = 0.0"))
END
