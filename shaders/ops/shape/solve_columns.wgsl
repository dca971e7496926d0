// a · y = b for triangular matrices a: a thread solves a column, from the row that stands alone on.
// @import formats/load/f32 as a
// @import formats/load/f32 as b
// @import lib/index/grid

const WG: u32 = 64u;
const LOWER: bool = true;
const UNIT: bool = false;

struct Params {
    columns: u32, n: u32, cols: u32, a_offset: u32, b_offset: u32, shape: vec4<u32>,
    a_strides: vec4<u32>, b_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.columns {
        return;
    }
    let batch = i / params.cols;
    let column = i % params.cols;
    let at = vec2<u32>(batch / params.shape.y, batch % params.shape.y);
    let a_start = params.a_offset + at.x * params.a_strides.x + at.y * params.a_strides.y;
    let b_start = params.b_offset + at.x * params.b_strides.x + at.y * params.b_strides.y
        + column * params.b_strides.w;
    let y_start = batch * params.n * params.cols + column;
    for (var step = 0u; step < params.n; step++) {
        let row = select(params.n - 1u - step, step, LOWER);
        let a_row = a_start + row * params.a_strides.z;
        var rest = b_load(b_start + row * params.b_strides.z);
        for (var known = 0u; known < step; known++) {
            let k = select(params.n - 1u - known, known, LOWER);
            rest -= a_load(a_row + k * params.a_strides.w) * y[y_start + k * params.cols];
        }
        if !UNIT {
            rest /= a_load(a_row + row * params.a_strides.w);
        }
        y[y_start + row * params.cols] = rest;
    }
}
