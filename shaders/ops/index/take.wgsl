// y[outer, k, inner] = x[outer, ids[k], inner], or with an id for every value,
// ids[outer, k, inner]; 0 for an id outside.
// @import formats/bits_load/word as x
// @import formats/bits_store4/word as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;
const ALONG: bool = false;

struct Params { size: u32, count: u32, extent: u32, inner: u32, x_offset: u32, ids_offset: u32 }

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

fn value(index: u32) -> vec2<u32> {
    let i = min(index, params.size - 1u);
    let k = (i / params.inner) % params.count;
    let outer = i / params.inner / params.count;
    var place = k;
    if ALONG {
        place = i;
    }
    let id = wrapped(ids[params.ids_offset + place], params.extent);
    if id >= params.extent {
        return vec2<u32>(0u);
    }
    let at = (outer * params.extent + id) * params.inner + i % params.inner;
    return x_load(params.x_offset + at);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_store4(i, value(i), value(i + 1u), value(i + 2u), value(i + 3u));
    }
}
