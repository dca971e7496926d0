#!/bin/sh
# naga: `bitcast<vec2<f16>>(u32)` is not a vector of two halves
#
# Versions: wgpu 0.32.0 (wgpu-native 29), any adapter with shader-f16 (lavapipe of Mesa 25.0.7 here).
# WGSL defines the cast between a u32 and a vec2<f16>, both of 32 bits. naga gives the result one
# component and refuses `.x`; the way back is refused with a type that WGSL does not have.
# `unpack2x16float` gives the same two numbers as f32.
. "$(dirname "$0")/common.sh"
install wgpu==0.32.0
expect 'let v = bitcast<vec2<f16>>(bits); out = f32(v.x); -> invalid field accessor `x`
out = f32(bitcast<u32>(vec2<f16>(1.0h, 2.0h + f16(out)))); -> cannot cast a vec2<{non-WGSL Naga scalar Scalar { kind: Uint, width: 2 }}> to a f32
let v = unpack2x16float(bits); out = v.x; -> compiles' <<'END'
import re

import wgpu

adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
device = adapter.request_device_sync(required_features=["shader-f16"])
for body in (
    "let v = bitcast<vec2<f16>>(bits); out = f32(v.x);",
    "out = f32(bitcast<u32>(vec2<f16>(1.0h, 2.0h + f16(out))));",
    "let v = unpack2x16float(bits); out = v.x;",
):
    code = (
        "enable f16;\n@group(0) @binding(0) var<storage, read_write> out: f32;\n"
        "@compute @workgroup_size(1) fn main() { let bits = u32(out) + 0x40003c00u; " + body + " }\n"
    )
    try:
        device.create_shader_module(code=code)
        print(body, "-> compiles")
    except wgpu.GPUError as error:
        print(body, "->", re.search(r"parsing error: (.*)", str(error))[1])
END
