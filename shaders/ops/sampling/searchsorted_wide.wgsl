// As searchsorted.wgsl, of integers of 64 bits.
// @import formats/bits_load/wide as x
// @import formats/bits_load/wide as v
// @import lib/index/grid
// @import lib/numeric/wide_integers

const WG: u32 = 64u;
const RIGHT: bool = false;

struct Params { size: u32, length: u32, x_offset: u32, v_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let wanted = v_load(params.v_offset + i);
    var low = 0u;
    var high = params.length;
    while low < high {
        let middle = (low + high) / 2u;
        let key = x_load(params.x_offset + middle);
        if wide_below(key, wanted) || (RIGHT && all(key == wanted)) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    y[i] = i32(low);
}
