// Where element `i` of a tensor in row-major order lies, given shape and strides of four axes.

fn strided(i: u32, shape: vec4<u32>, strides: vec4<u32>) -> u32 {
    let row = i / shape.w;
    let plane = row / shape.z;
    let at = vec4<u32>(plane / shape.y, plane % shape.y, row % shape.z, i % shape.w);
    let steps = at * strides;
    return steps.x + steps.y + steps.z + steps.w;
}

fn strided4(i: u32, shape: vec4<u32>, strides: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(
        strided(i, shape, strides),
        strided(i + 1u, shape, strides),
        strided(i + 2u, shape, strides),
        strided(i + 3u, shape, strides),
    );
}
