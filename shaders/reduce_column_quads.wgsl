// As reduce_columns.wgsl, for outputs whose values lie side by side in whole vectors of four: a thread
// folds those of four outputs.
// @import vec4/f32 as x
// @import load/f32 as centre
// @import fold/sum as fold
// @import lib/grid
// @import lib/strided

const WG: u32 = 64u;
const CENTRED: bool = false;
// The axes that are folded step through storage as one, and so do those that are kept.
const LINE: bool = true;
const KEPT_LINE: bool = false;

struct Params {
    outputs: u32,
    length: u32,
    part: u32,
    parts: u32,
    x_offset: u32,
    centre_offset: u32,
    divisor: f32,
    kept_shape: vec4<u32>,
    kept_strides: vec4<u32>,
    line_shape: vec4<u32>,
    line_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i >= params.outputs * params.parts {
        return;
    }
    let output = i % params.outputs;
    let part = i / params.outputs;
    var start = params.x_offset + output * params.kept_strides.w;
    if !KEPT_LINE {
        start = params.x_offset + strided(output, params.kept_shape, params.kept_strides);
    }
    let end = min((part + 1u) * params.part, params.length);
    var centre = vec4<f32>();
    if CENTRED {
        centre = centre_load4(params.centre_offset + output);
    }
    var a = fold_none();
    var b = fold_none();
    var c = fold_none();
    var d = fold_none();
    for (var k = part * params.part; k < end; k++) {
        var at = start + k * params.line_strides.w;
        if !LINE {
            at = start + strided(k, params.line_shape, params.line_strides);
        }
        let values = x_load4(at / 4u);
        a = fold_join(a, fold_take(fold_Value(values.x), centre.x));
        b = fold_join(b, fold_take(fold_Value(values.y), centre.y));
        c = fold_join(c, fold_take(fold_Value(values.z), centre.z));
        d = fold_join(d, fold_take(fold_Value(values.w), centre.w));
    }
    let first = output * params.parts + part;
    y[first] = fold_bits(a, params.divisor);
    y[first + params.parts] = fold_bits(b, params.divisor);
    y[first + 2u * params.parts] = fold_bits(c, params.divisor);
    y[first + 3u * params.parts] = fold_bits(d, params.divisor);
}
