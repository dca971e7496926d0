// y[t] = sum_u x[t, u] · weights[t, u] · factor + addend[t]: a thread makes four values of a token's row.
// @import formats/vec4/f32 as x
// @import formats/load/f32 as weights
// @import formats/vec4/f32 as addend
// @import lib/index/grid

const WG: u32 = 64u;
const WEIGHTED: bool = true;
const ADDS: bool = false;

struct Params {
    size: u32, vec4s: u32, used: u32, factor: f32, x_offset: u32, weights_offset: u32, addend_offset: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let first = i / params.vec4s * params.used;
    var sum = vec4<f32>(0.0);
    for (var u = first; u < first + params.used; u++) {
        var values = x_load4(params.x_offset / 4u + u * params.vec4s + i % params.vec4s);
        if WEIGHTED {
            values *= weights_load(params.weights_offset + u);
        }
        sum += values;
    }
    sum *= params.factor;
    if ADDS {
        sum += addend_load4(params.addend_offset / 4u + i);
    }
    y[i] = sum;
}
