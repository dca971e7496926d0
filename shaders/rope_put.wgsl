// Queries and keys rotated by the angles of a table as in rope.wgsl, and keys and values put into
// their rows of the cache. A thread takes eight values of one head: four pairs that turn, or values
// that are only moved.
// @import vec4/f32 as q
// @import vec4/f32 as k
// @import vec4/f32 as v
// @import vec4/f32 as table
// @import store/f32 as keys
// @import store/f32 as values
// @import lib/grid

const WG: u32 = 64u;
const INTERLEAVED: bool = false;

// Strides and offsets are multiples of four; `octets` counts threads of a token, by kind of head.
struct Params {
    size: u32, octets: vec4<u32>, cols: u32, v_cols: u32, pairs: u32, rows: u32, kv_heads: u32,
    heads: u32, q_offset: u32, q_strides: vec4<u32>, k_offset: u32, k_strides: vec4<u32>,
    v_offset: u32, v_strides: vec4<u32>, table_offset: u32, slots_offset: u32,
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
    let places = places_of(octet % each);
    let start = params.q_offset + token * params.q_strides.y + octet / each * params.q_strides.z;
    let turned = turned_by(token, octet % each, q_load4((start + places.x) / 4u), q_load4((start + places.y) / 4u));
    let at = (token * params.heads + octet / each) * params.cols;
    y[(at + places.x) / 4u] = turned[0];
    y[(at + places.y) / 4u] = turned[1];
}

fn key(token: u32, octet: u32, row: u32) {
    let each = params.cols / 8u;
    let places = places_of(octet % each);
    let start = params.k_offset + token * params.k_strides.y + octet / each * params.k_strides.z;
    let turned = turned_by(token, octet % each, k_load4((start + places.x) / 4u), k_load4((start + places.y) / 4u));
    let at = (row * params.kv_heads + octet / each) * params.cols;
    keys_store4(at + places.x, turned[0]);
    keys_store4(at + places.y, turned[1]);
}

fn value(token: u32, octet: u32, row: u32) {
    let each = params.v_cols / 8u;
    let within = octet % each * 8u;
    let start = params.v_offset + token * params.v_strides.y + octet / each * params.v_strides.z;
    let at = (row * params.kv_heads + octet / each) * params.v_cols + within;
    values_store4(at, v_load4((start + within) / 4u));
    values_store4(at + 4u, v_load4((start + within) / 4u + 1u));
}

// Where in a head the two vectors of an octet lie.
fn places_of(octet: u32) -> vec2<u32> {
    if octet * 4u >= params.pairs || INTERLEAVED {
        return vec2<u32>(octet * 8u, octet * 8u + 4u);
    }
    return vec2<u32>(octet * 4u, params.pairs + octet * 4u);
}

// Pairs are (i, i + pairs), or neighbours when INTERLEAVED; values beyond 2 · pairs stay.
fn turned_by(token: u32, octet: u32, a: vec4<f32>, b: vec4<f32>) -> array<vec4<f32>, 2> {
    if octet * 4u >= params.pairs {
        return array<vec4<f32>, 2>(a, b);
    }
    let at = (params.table_offset + (token * params.pairs + octet * 4u) * 2u) / 4u;
    let early = table_load4(at);
    let late = table_load4(at + 1u);
    let cosine = vec4<f32>(early.xz, late.xz);
    let sine = vec4<f32>(early.yw, late.yw);
    if INTERLEAVED {
        let first = vec4<f32>(a.xz, b.xz);
        let second = vec4<f32>(a.yw, b.yw);
        let real = first * cosine - second * sine;
        let imaginary = first * sine + second * cosine;
        return array<vec4<f32>, 2>(
            vec4<f32>(real.x, imaginary.x, real.y, imaginary.y),
            vec4<f32>(real.z, imaginary.z, real.w, imaginary.w),
        );
    }
    return array<vec4<f32>, 2>(a * cosine - b * sine, a * sine + b * cosine);
}
