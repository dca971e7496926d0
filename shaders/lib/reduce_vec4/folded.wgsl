// Four values that were read at once, reduced.
// @import lib/reduce_op/sum as reduce_op

fn buf_taken(values: vec4<f32>, centre: f32) -> reduce_op_Total {
    let left = reduce_op_join(
        reduce_op_take(reduce_op_Value(values.x), centre), reduce_op_take(reduce_op_Value(values.y), centre)
    );
    let right = reduce_op_join(
        reduce_op_take(reduce_op_Value(values.z), centre), reduce_op_take(reduce_op_Value(values.w), centre)
    );
    return reduce_op_join(left, right);
}
