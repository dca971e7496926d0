// The parts of a product, added up in their order, and what the product does behind its sums: halves of
// rows joined by an activation, something added. A thread makes four values.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as addend
// @import lib/gate/silu as gate
// @import lib/index/grid

const WG: u32 = 64u;
const PARTS: u32 = 2u;
const GATED: bool = false;
const ADDS: bool = false;

struct Params { size: u32, vec4s: u32, part_vec4s: u32, addend_offset: u32, addend_stride: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let col = i / params.vec4s;
    let row = i % params.vec4s;
    var sum: vec4<f32>;
    if GATED {
        let gate = whole(2u * col * params.vec4s + row);
        let up = whole((2u * col + 1u) * params.vec4s + row);
        sum = vec4<f32>(gate_act(gate.x), gate_act(gate.y), gate_act(gate.z), gate_act(gate.w)) * up;
    } else {
        sum = whole(i);
    }
    if ADDS {
        sum += addend_load4((params.addend_offset + col * params.addend_stride) / 4u + row);
    }
    y[i] = sum;
}

fn whole(at: u32) -> vec4<f32> {
    var parts: array<vec4<f32>, PARTS>;
    // @unroll
    for (var p = 0u; p < PARTS; p++) {
        parts[p] = x_load4(at + p * params.part_vec4s);
    }
    var sum = parts[0];
    // @unroll
    for (var p = 1u; p < PARTS; p++) {
        sum += parts[p];
    }
    return sum;
}
