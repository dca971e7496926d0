// y[i] = how many values of the sorted `x` come before v[i], or with RIGHT not after it.
// @import formats/load/f32 as x
// @import formats/load/f32 as v
// @import lib/index/grid
// @import lib/sort/order

const WG: u32 = 64u;
const INTEGER: bool = false;
const RIGHT: bool = false;

struct Params { size: u32, length: u32, x_offset: u32, v_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

fn x_key(at: u32) -> u32 {
    if INTEGER {
        return key_of_integer(u32(x_load(at)));
    }
    return key_of_f32(f32(x_load(at)));
}

fn v_key(at: u32) -> u32 {
    if INTEGER {
        return key_of_integer(u32(v_load(at)));
    }
    return key_of_f32(f32(v_load(at)));
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let wanted = v_key(params.v_offset + i);
    var low = 0u;
    var high = params.length;
    while low < high {
        let middle = (low + high) / 2u;
        let key = x_key(params.x_offset + middle);
        if key < wanted || (RIGHT && key == wanted) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    y[i] = i32(low);
}
