// Joins the splits of attention: sums and totals, each scaled to the largest score of all.
// @import lib/index/grid

const WG: u32 = 64u;
const LOWEST: f32 = -3.4028234e38;

struct Params { size: u32, splits: u32, vec4s: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

// One thread a vec4 of the result.
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let width = params.vec4s + 1u;
    let first = (i / params.vec4s) * params.splits * width;
    var largest = LOWEST;
    for (var s = 0u; s < params.splits; s++) {
        largest = max(largest, x[first + s * width + params.vec4s].x);
    }
    var sum = vec4<f32>(0.0);
    var total = 0.0;
    for (var s = 0u; s < params.splits; s++) {
        let tail = x[first + s * width + params.vec4s];
        let factor = exp(tail.x - largest);
        total += tail.y * factor;
        sum += x[first + s * width + i % params.vec4s] * factor;
    }
    y[i] = sum / max(total, 1e-37);
}
