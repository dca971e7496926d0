// y[i] = ids[i], or what a slot of `token_slots` holds where the id names one: -2 the first, -3 the
// second. A slot that there is not gives -1.
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, slots: u32, ids_offset: u32 }

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> token_slots: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let wanted = ids[params.ids_offset + i];
    let slot = u32(-2 - wanted);
    var found = max(wanted, -1);
    if slot < params.slots {
        found = token_slots[slot];
    }
    y[i] = found;
}
