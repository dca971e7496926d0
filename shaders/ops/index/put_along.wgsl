// y[outer, ids[i], inner] = x[i], with an id for every value; ids outside write nothing.
// @import formats/bits_load/word as x
// @import formats/bits_store/word as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;

struct Params {
    size: u32, count: u32, extent: u32, inner: u32, x_offset: u32, ids_offset: u32, y_offset: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let outer = i / params.inner / params.count;
    let place = wrapped(ids[params.ids_offset + i], params.extent);
    if place < params.extent {
        let at = (outer * params.extent + place) * params.inner + i % params.inner;
        y_put(params.y_offset + at, x_load(params.x_offset + i));
    }
}
