// y[k] = index of the k-th value that is true. `ends` are running counts, each value included. What is
// beyond the last of them is 0.
// @import formats/load/bool as mask
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { length: u32, count: u32, mask_offset: u32, ends_offset: u32 }

@group(0) @binding(0) var<storage, read> ends: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<i32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i < params.length {
        let place = ends[params.ends_offset + i] - 1u;
        if mask_load(params.mask_offset + i) != 0u && place < params.count {
            y[place] = i32(i);
        }
    }
    if i < params.count {
        var all = 0u;
        if params.length > 0u {
            all = ends[params.ends_offset + params.length - 1u];
        }
        if i >= all {
            y[i] = 0;
        }
    }
}
