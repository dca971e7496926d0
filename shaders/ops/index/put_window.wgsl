// y[at] = x[at], y any strided window of a tensor that is written.
// @import formats/bits_load/word as x
// @import formats/bits_store/word as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;

struct Params {
    size: u32, x_offset: u32, y_offset: u32, shape: vec4<u32>, x_strides: vec4<u32>,
    y_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i < params.size {
        let at = coordinates(i, params.shape);
        let bits = x_load(params.x_offset + steps(at, params.x_strides));
        y_put(params.y_offset + steps(at, params.y_strides), bits);
    }
}
