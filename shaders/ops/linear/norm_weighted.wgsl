// y = x · weight, and behind each row the squares of x of which a product of y makes the norm: a thread
// takes the values that share a number of them.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import lib/index/grid
// @import lib/linear/squares

const WG: u32 = 64u;

struct Params { size: u32, cols: u32, x_offset: u32, weight_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let vec4s = params.cols / 4u;
    let tail = square_vec4s(params.cols);
    let row = i / (tail * 4u);
    let part = i % (tail * 4u);
    let start = row * (vec4s + tail);
    let end = min((part + 1u) * (SQUARED / 4u), vec4s);
    var squares = vec4<f32>(0.0);
    for (var k = part * (SQUARED / 4u); k < end; k++) {
        let values = x_load4(params.x_offset / 4u + row * vec4s + k);
        squares += values * values;
        y[start + k] = values * weight_load4(params.weight_offset / 4u + k);
    }
    y[start + vec4s + part / 4u][part % 4u] = dot(squares, vec4<f32>(1.0));
}
