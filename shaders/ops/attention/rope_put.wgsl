// Queries and keys rotated by the angles of a table as in rope.wgsl, and keys and values put into
// their rows of the cache. A thread takes eight values of one head: four pairs that turn, or values
// that are only moved.
// @import formats/vec4/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import lib/attention/cache_f32 as keys
// @import lib/attention/cache_f32 as values
// @import lib/rope/turned
// @import lib/index/grid

const WG: u32 = 64u;

// Strides and offsets are multiples of four; `octets` counts threads of a token, by kind of head.
struct Params {
    size: u32, octets: vec4<u32>, cols: u32, v_cols: u32, pairs: u32, rows: u32, kv_heads: u32,
    heads: u32, q_offset: u32, q_strides: vec4<u32>, k_offset: u32, k_strides: vec4<u32>,
    v_offset: u32, v_strides: vec4<u32>, angles_offset: u32, slots_offset: u32,
}

@group(0) @binding(0) var<storage, read> slots: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let token = i / params.octets.w;
    let octet = i % params.octets.w;
    if octet < params.octets.x {
        query(token, octet);
        return;
    }
    // A slot outside the cache writes nothing: padding of a batch uses -1.
    let row = u32(slots[params.slots_offset + token]);
    if row >= params.rows {
        return;
    }
    if octet < params.octets.y {
        key(token, octet - params.octets.x, row);
    } else {
        value(token, octet - params.octets.y, row);
    }
}

fn query(token: u32, octet: u32) {
    let each = params.cols / 8u;
    let places = places_of(octet % each, params.pairs);
    let start = params.q_offset + token * params.q_strides.y + octet / each * params.q_strides.z;
    let made = turned(octet % each, params.pairs, angles_of(token), q_load4((start + places.x) / 4u), q_load4((start + places.y) / 4u));
    let at = (token * params.heads + octet / each) * params.cols;
    y[(at + places.x) / 4u] = made[0];
    y[(at + places.y) / 4u] = made[1];
}

fn key(token: u32, octet: u32, row: u32) {
    let each = params.cols / 8u;
    let places = places_of(octet % each, params.pairs);
    let start = params.k_offset + token * params.k_strides.y + octet / each * params.k_strides.z;
    let made = turned(octet % each, params.pairs, angles_of(token), k_load4((start + places.x) / 4u), k_load4((start + places.y) / 4u));
    let at = (row * params.kv_heads + octet / each) * params.cols;
    keys_put4((at + places.x) / 4u, made[0]);
    keys_put4((at + places.y) / 4u, made[1]);
}

fn value(token: u32, octet: u32, row: u32) {
    let each = params.v_cols / 8u;
    let within = octet % each * 8u;
    let start = params.v_offset + token * params.v_strides.y + octet / each * params.v_strides.z;
    let at = (row * params.kv_heads + octet / each) * params.v_cols + within;
    values_put4(at / 4u, v_load4((start + within) / 4u));
    values_put4(at / 4u + 1u, v_load4((start + within) / 4u + 1u));
}

// Where the table has the angles of a token.
fn angles_of(token: u32) -> u32 {
    return params.angles_offset + token * params.pairs * 2u;
}
