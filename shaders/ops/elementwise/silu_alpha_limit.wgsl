// y = g · sigmoid(alpha · g) · (u + 1), where g is x, at most `limit`, and u is up, within ± limit.
// @import formats/load/f32 as x
// @import formats/load/f32 as up
// @import formats/store/f32 as y
// @import lib/index/grid
// @import lib/numeric/nan

const WG: u32 = 64u;

struct Params { size: u32, x_offset: u32, up_offset: u32, alpha: f32, limit: f32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        let x = x_load4(params.x_offset + i);
        let up = up_load4(params.up_offset + i);
        let limit = vec4<f32>(params.limit);
        let gate = keep_nan(x, select(x, limit, x > limit));
        let above = select(up, -limit, up < -limit);
        let linear = keep_nan(up, select(above, limit, above > limit));
        y_store4(i, gate / (1.0 + exp(-params.alpha * gate)) * (linear + 1.0));
    }
}
