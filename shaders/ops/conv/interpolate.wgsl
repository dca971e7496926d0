// y = x in another size. NEAREST: the value whose cell holds the pixel's beginning. Otherwise
// bilinear over the last two axes between the centres of pixels, and nearest along the others.
// @import formats/load/f32 as x
// @import lib/index/grid

const WG: u32 = 64u;
const NEAREST: bool = true;

struct Params {
    size: u32, x_offset: u32, x_shape: vec4<u32>, x_strides: vec4<u32>, out: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let row = i / params.out.w;
    let plane = row / params.out.z;
    let first = vec2<u32>(plane / params.out.y, plane % params.out.y);
    let at = vec4<u32>(first, row % params.out.z, i % params.out.w);
    let near = at * params.x_shape / params.out;
    if NEAREST {
        let steps = near * params.x_strides;
        y[i] = x_load(params.x_offset + steps.x + steps.y + steps.z + steps.w);
        return;
    }
    let source = params.x_offset + near.x * params.x_strides.x + near.y * params.x_strides.y;
    let h = between(at.z, params.x_shape.z, params.out.z);
    let w = between(at.w, params.x_shape.w, params.out.w);
    let above = source + h.low * params.x_strides.z;
    let below = source + h.high * params.x_strides.z;
    let left = w.low * params.x_strides.w;
    let right = w.high * params.x_strides.w;
    let upper = mix(x_load(above + left), x_load(above + right), w.share);
    let lower = mix(x_load(below + left), x_load(below + right), w.share);
    y[i] = mix(upper, lower, h.share);
}

struct Between { low: u32, high: u32, share: f32 }

// The two values whose centres lie around that of a pixel. In halves of a pixel of the result the
// centre is at (2 at + 1) · have / (2 want) - 1/2, whose whole part and rest are exact as integers.
fn between(at: u32, have: u32, want: u32) -> Between {
    let numerator = (2u * at + 1u) * have;
    if numerator < want {
        return Between(0u, 0u, 0.0);
    }
    let low = (numerator - want) / (2u * want);
    let rest = (numerator - want) % (2u * want);
    return Between(low, min(low + 1u, have - 1u), f32(rest) / f32(2u * want));
}
