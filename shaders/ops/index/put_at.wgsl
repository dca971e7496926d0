// y[start + at] = x[k, at]: windows written where ids say, one id for each of some axes. What would
// lie outside is dropped.
// @import formats/bits_load/word as x
// @import formats/bits_store/word as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;
const COUNT: u32 = 4u;

struct Params {
    size: u32,
    window_size: u32,
    x_offset: u32,
    y_offset: u32,
    ids_a_offset: u32,
    ids_b_offset: u32,
    ids_c_offset: u32,
    ids_d_offset: u32,
    window: vec4<u32>,
    axes: vec4<u32>,
    y_shape: vec4<u32>,
    y_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> ids_a: array<i32>;
@group(0) @binding(1) var<storage, read> ids_b: array<i32>;
@group(0) @binding(2) var<storage, read> ids_c: array<i32>;
@group(0) @binding(3) var<storage, read> ids_d: array<i32>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let k = i / params.window_size;
    var start = vec4<u32>(0u);
    start = with_start(start, params.axes.x, ids_a[params.ids_a_offset + k]);
    if COUNT > 1u {
        start = with_start(start, params.axes.y, ids_b[params.ids_b_offset + k]);
    }
    if COUNT > 2u {
        start = with_start(start, params.axes.z, ids_c[params.ids_c_offset + k]);
    }
    if COUNT > 3u {
        start = with_start(start, params.axes.w, ids_d[params.ids_d_offset + k]);
    }
    // Both are checked: the sum of a large start and a place may wrap around into the tensor.
    let at = start + coordinates(i % params.window_size, params.window);
    if all(start < params.y_shape) && all(at < params.y_shape) {
        y_put(params.y_offset + steps(at, params.y_strides), x_load(params.x_offset + i));
    }
}

// D3D12's compiler cannot write one component of a vector by an index known at run time only.
fn with_start(start: vec4<u32>, axis: u32, id: i32) -> vec4<u32> {
    let along = vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(axis);
    return select(start, vec4<u32>(wrapped(id, params.y_shape[axis])), along);
}
