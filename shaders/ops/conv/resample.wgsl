// y[o, i, c] = sum of x[o, first of i + k, c] · weight of k: neighbours along an axis, by a table. A
// value a thread, or four that are a vector in storage.
// @import formats/load/f32 as x
// @import formats/vec4/f32 as vec4s
// @import lib/index/grid

const WG: u32 = 64u;
const VECTOR: bool = true;

struct Params {
    count: u32, blocks: u32, inner: u32, have: u32, want: u32, columns: u32, x_offset: u32,
    table_offset: u32,
}

@group(0) @binding(0) var<storage, read> table: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

fn values_at(i: u32) -> vec4<f32> {
    if VECTOR {
        return vec4s_load4(i / 4u);
    }
    return vec4<f32>(x_load(i), 0.0, 0.0, 0.0);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let index = grid_index(id, groups, WG);
    if index >= params.count {
        return;
    }
    let row = index / params.blocks;
    let column = (index % params.blocks) * select(1u, 4u, VECTOR);
    let line = params.table_offset + (row % params.want) * params.columns;
    // The table is a tensor like any other: what it says is kept inside.
    let first = min(u32(max(table[line], 0.0)), params.have - 1u);
    let taps = min(params.columns - 1u, params.have - first);
    let start = ((row / params.want) * params.have + first) * params.inner + column;
    var sum = vec4<f32>();
    for (var k = 0u; k < taps; k++) {
        let weight = table[line + 1u + k];
        if weight != 0.0 {
            sum += values_at(params.x_offset + start + k * params.inner) * weight;
        }
    }
    let at_y = row * params.inner + column;
    for (var k = 0u; k < select(1u, 4u, VECTOR); k++) {
        y[at_y + k] = sum[k];
    }
}
