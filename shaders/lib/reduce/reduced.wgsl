// Folding values that belong to one output: kept axes say which output, the others are run through.
// @import formats/load/f32 as x
// @import formats/vec4/f32 as vec4s
// @import formats/load/f32 as centre
// @import lib/reduce_op/sum as reduce_op
// @import lib/index/strided

const CENTRED: bool = false;
// The axes that are run through step through storage as one, and so do those that are kept.
const ONE_REDUCED_AXIS: bool = true;
const ONE_KEPT_AXIS: bool = false;
// They are neighbours, in whole vectors: `vec4s` is `x` once more, read by those.
const VEC4S: bool = false;

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
    reduced_shape: vec4<u32>,
    reduced_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

// Values `first`, `first + step` … of a part of an output, reduced.
fn reduced(output: u32, part: u32, first: u32, step: u32) -> reduce_op_Total {
    var start = params.x_offset + output * params.kept_strides.w;
    if !ONE_KEPT_AXIS {
        start = params.x_offset + strided(output, params.kept_shape, params.kept_strides);
    }
    let end = min((part + 1u) * params.part, params.length);
    var centre = 0.0;
    if CENTRED {
        centre = f32(centre_load(params.centre_offset + output));
    }
    var total = reduce_op_none();
    if VEC4S {
        for (var i = part * params.part / 4u + first; i < end / 4u; i += step) {
            total = reduce_op_join(total, reduce_op_vec4(vec4s_load4(start / 4u + i), centre));
        }
        return total;
    }
    for (var i = part * params.part + first; i < end; i += step) {
        var at = start + i * params.reduced_strides.w;
        if !ONE_REDUCED_AXIS {
            at = start + strided(i, params.reduced_shape, params.reduced_strides);
        }
        total = reduce_op_join(total, reduce_op_take(reduce_op_Value(x_load(at)), centre));
    }
    return total;
}

fn reduce_op_vec4(values: vec4<f32>, centre: f32) -> reduce_op_Total {
    let left = reduce_op_join(
        reduce_op_take(reduce_op_Value(values.x), centre), reduce_op_take(reduce_op_Value(values.y), centre)
    );
    let right = reduce_op_join(
        reduce_op_take(reduce_op_Value(values.z), centre), reduce_op_take(reduce_op_Value(values.w), centre)
    );
    return reduce_op_join(left, right);
}
