#!/bin/sh
# naga: a third of WGSL's functions cannot be used in a constant
#
# Versions: wgpu 0.32.0 (wgpu-native 29), any adapter. WGSL lets a constant use every function here (its chapters on
# built-in functions mark them @const). naga computes constants itself and refuses those that it has not: none may be
# packed, unpacked, bit-cast, mixed or transposed. The same expression in a function compiles.
. "$(dirname "$0")/common.sh"
install wgpu==0.32.0
expect 'bitcast<f32>(1u): refused as a constant
determinant(mat2x2f(1, 2, 3, 4)): refused as a constant
extractBits(255u, 0u, 4u): refused as a constant
floor(1.5): compiles
ldexp(1.0f, 2): refused as a constant
mix(1.0f, 2.0f, 0.5f): refused as a constant
pack2x16float(vec2f(1)): refused as a constant
pow(2.0, 3.0): compiles
quantizeToF16(1.1): refused as a constant
smoothstep(0.0f, 1.0f, 0.3f): refused as a constant
transpose(mat2x2f(1, 2, 3, 4))[0].x: refused as a constant
unpack4x8unorm(255u).x: refused as a constant' <<'END'
import wgpu

device = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
HEAD = "@group(0) @binding(0) var<storage, read_write> out: f32;\n"


def compiles(code):
    try:
        device.create_shader_module(code=HEAD + code)
    except wgpu.GPUError as error:
        assert "constant expression" in str(error) or "const" in str(error), error
        return False
    return True


for value in (
    "bitcast<f32>(1u)",
    "determinant(mat2x2f(1, 2, 3, 4))",
    "extractBits(255u, 0u, 4u)",
    "floor(1.5)",
    "ldexp(1.0f, 2)",
    "mix(1.0f, 2.0f, 0.5f)",
    "pack2x16float(vec2f(1))",
    "pow(2.0, 3.0)",
    "quantizeToF16(1.1)",
    "smoothstep(0.0f, 1.0f, 0.3f)",
    "transpose(mat2x2f(1, 2, 3, 4))[0].x",
    "unpack4x8unorm(255u).x",
):
    assert compiles("@compute @workgroup_size(1) fn main() { let x = " + value + "; out = f32(x); }")
    whole = compiles("const x = " + value + "; @compute @workgroup_size(1) fn main() { out = f32(x); }")
    print(f"{value}: {'compiles' if whole else 'refused as a constant'}")
END
