// As reduce_columns.wgsl, for outputs whose values lie side by side in whole vectors of four: a thread
// reduces those of four outputs.
// @import formats/vec4/f32 as x
// @import formats/load/f32 as centre
// @import lib/reduce_op/sum as reduce_op
// @import lib/index/grid
// @import lib/reduce/part

const WG: u32 = 64u;

@group(0) @binding(0) var<storage, read_write> y: array<reduce_op_Bits>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i >= params.outputs * params.parts {
        return;
    }
    let output = i % params.outputs;
    let part = i / params.outputs;
    let start = start_of(output);
    let end = end_of(part);
    var centre = vec4<f32>();
    if CENTRED {
        centre = centre_load4(params.centre_offset + output);
    }
    var a = reduce_op_none();
    var b = reduce_op_none();
    var c = reduce_op_none();
    var d = reduce_op_none();
    for (var k = part * params.part; k < end; k++) {
        let values = x_load4(place(start, k) / 4u);
        a = reduce_op_join(a, reduce_op_take(reduce_op_Value(values.x), centre.x));
        b = reduce_op_join(b, reduce_op_take(reduce_op_Value(values.y), centre.y));
        c = reduce_op_join(c, reduce_op_take(reduce_op_Value(values.z), centre.z));
        d = reduce_op_join(d, reduce_op_take(reduce_op_Value(values.w), centre.w));
    }
    let first = output * params.parts + part;
    y[first] = reduce_op_bits(a, params.divisor);
    y[first + params.parts] = reduce_op_bits(b, params.divisor);
    y[first + 2u * params.parts] = reduce_op_bits(c, params.divisor);
    y[first + 3u * params.parts] = reduce_op_bits(d, params.divisor);
}
