// Coordinates of element `i` of a tensor of four axes in row-major order, and steps along strides.

fn coordinates(i: u32, shape: vec4<u32>) -> vec4<u32> {
    let row = i / shape.w;
    let plane = row / shape.z;
    return vec4<u32>(plane / shape.y, plane % shape.y, row % shape.z, i % shape.w);
}

fn steps(at: vec4<u32>, strides: vec4<u32>) -> u32 {
    let along = at * strides;
    return along.x + along.y + along.z + along.w;
}

// An id below zero counts from the end; what is still outside comes out as a large number.
fn wrapped(id: i32, extent: u32) -> u32 {
    return u32(id) + select(0u, extent, id < 0);
}
