// y = x + sin²(alpha · x) / alpha, value by value: four a thread.
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, x_offset: u32, alpha: f32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        let value = x_load4(params.x_offset + i);
        let wave = sin(params.alpha * value);
        y_store4(i, value + wave * wave / params.alpha);
    }
}
