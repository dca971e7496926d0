// Folding values that belong to one output.
// @import formats/load/f32 as x
// @import formats/vec4/f32 as vec4s
// @import formats/load/f32 as centre
// @import lib/reduce_op/sum as reduce_op
// @import lib/reduce_vec4/folded as fours
// @import lib/reduce/part

// The values are neighbours, in whole vectors: `vec4s` is `x` once more, read by those.
const VEC4S: bool = false;

@group(0) @binding(0) var<uniform> params: Params;

// Values `first`, `first + step` … of a part of an output, reduced.
fn reduced(output: u32, part: u32, first: u32, step: u32) -> reduce_op_Total {
    let start = start_of(output);
    let end = end_of(part);
    var centre = 0.0;
    if CENTRED {
        centre = f32(centre_load(params.centre_offset + output));
    }
    var total = reduce_op_none();
    if VEC4S {
        for (var i = part * params.part / 4u + first; i < end / 4u; i += step) {
            total = reduce_op_join(total, fours_taken(vec4s_load4(start / 4u + i), centre));
        }
        return total;
    }
    for (var i = part * params.part + first; i < end; i += step) {
        let value = reduce_op_Value(x_load(place(start, i)));
        total = reduce_op_join(total, reduce_op_take(value, centre));
    }
    return total;
}
