// y[group] = scale and bias: the end of the values that is further from 0 is met exactly, and 0 is
// where a code is. A group a thread.
// @import formats/load/f32 as w
// @import lib/numeric/exact_ratio
// @import lib/index/grid

const WG: u32 = 64u;
const LEAST: f32 = 1e-7;  // of a scale

struct Params { count: u32, group_size: u32, bins: u32, w_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec2<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.count {
        return;
    }
    let first = params.w_offset + i * params.group_size;
    var low = w_load(first);
    var high = low;
    for (var k = 1u; k < params.group_size; k++) {
        let value = w_load(first + k);
        low = min(low, value);
        high = max(high, value);
    }
    let below = abs(low) > abs(high);
    let size = max(exact_ratio(high - low, f32(params.bins)), LEAST);
    let edge = select(high, low, below);
    var scale = select(-size, size, below);
    var bias = 0.0;
    let code = round(exact_ratio(edge, scale));
    if code != 0.0 {
        scale = exact_ratio(edge, code);
        bias = edge;
    }
    y[i] = vec2<f32>(scale, bias);
}
