// As softmax.wgsl, for rows of whole vectors of four.
// @import vec4/f32 as x
// @import lib/grid
// @import lib/reduce

const WG: u32 = 64u;
const LOWEST: f32 = -3.4028234e38;

struct Params { rows: u32, cols: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if row >= params.rows {
        return;
    }
    let quads = params.cols / 4u;
    let start = params.x_offset / 4u + row * quads;
    var largest = vec4<f32>(LOWEST);
    for (var i = lane; i < quads; i += WG) {
        largest = max(largest, x_load4(start + i));
    }
    let pair = max(largest.xy, largest.zw);
    let shift = group_max(max(pair.x, pair.y), lane);
    var sums = vec4<f32>();
    for (var i = lane; i < quads; i += WG) {
        sums += exp(x_load4(start + i) - shift);
    }
    let inverse = 1.0 / group_sum(dot(sums, vec4<f32>(1.0)), lane);
    for (var i = lane; i < quads; i += WG) {
        y[row * quads + i] = exp(x_load4(start + i) - shift) * inverse;
    }
}
