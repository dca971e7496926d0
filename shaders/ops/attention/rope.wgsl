// Rotates pairs of each head by the angles of a table: (a, b) -> (a cos - b sin, a sin + b cos).
// Pairs are (i, i + pairs), or neighbours when INTERLEAVED; values beyond 2 · pairs are copied.
// @import formats/load/f32 as x
// @import formats/load/f32 as table
// @import lib/index/grid

const WG: u32 = 64u;
const INTERLEAVED: bool = false;

struct Params {
    size: u32, heads: u32, cols: u32, pairs: u32, x_offset: u32, table_offset: u32,
    token_stride: u32, head_stride: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

// One thread a pair; threads beyond the rotated pairs copy two values each.
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let threads = (params.cols + 1u) / 2u;
    let pair = i % threads;
    let row = i / threads;
    let token = row / params.heads;
    let source = params.x_offset + token * params.token_stride + (row % params.heads) * params.head_stride;
    let target_at = row * params.cols;
    if pair >= params.pairs {
        y[target_at + 2u * pair] = x_load(source + 2u * pair);
        if 2u * pair + 1u < params.cols {
            y[target_at + 2u * pair + 1u] = x_load(source + 2u * pair + 1u);
        }
        return;
    }
    var first = pair;
    var second = pair + params.pairs;
    if INTERLEAVED {
        first = 2u * pair;
        second = first + 1u;
    }
    let at = params.table_offset + (token * params.pairs + pair) * 2u;
    let cosine = table_load(at);
    let sine = table_load(at + 1u);
    let a = x_load(source + first);
    let b = x_load(source + second);
    y[target_at + first] = a * cosine - b * sine;
    y[target_at + second] = a * sine + b * cosine;
}
