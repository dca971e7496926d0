// Where a row of `x` begins. Rows may be strided; the values of one row are neighbours.
fn row_start(row: u32) -> u32 {
    let plane = row / params.x_shape.z;
    let at = vec3<u32>(plane / params.x_shape.y, plane % params.x_shape.y, row % params.x_shape.z);
    let steps = at * params.x_strides.xyz;
    return steps.x + steps.y + steps.z;
}
