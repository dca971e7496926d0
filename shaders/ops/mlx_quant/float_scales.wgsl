// y[group] = largest size of its values over the largest number of the codes, as a small float: four
// groups a thread.
// @import formats/load/f32 as w
// @import formats/store/u8 as y
// @import lib/packed/small_floats
// @import lib/index/grid

const WG: u32 = 64u;
const GROUP: u32 = 32u;
const BITS: u32 = 4u;

struct Params { count: u32, w_offset: u32 }

@group(0) @binding(0) var<uniform> params: Params;

fn scale_of(group: u32) -> u32 {
    let first = params.w_offset + min(group, params.count - 1u) * GROUP;
    var largest = 0.0;
    for (var k = 0u; k < GROUP; k++) {
        largest = max(largest, abs(w_load(first + k)));
    }
    let scale = largest / select(448.0, 6.0, BITS == 4u);
    if GROUP == 16u {
        return to_e4m3(scale);
    }
    return to_e8m0(scale);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.count {
        y_store4(i, vec4<u32>(scale_of(i), scale_of(i + 1u), scale_of(i + 2u), scale_of(i + 3u)));
    }
}
