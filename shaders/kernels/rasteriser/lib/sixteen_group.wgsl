// A group whose quants stand for 16 numbers.
// @import lib/blocks/group
// @import kernels/rasteriser/lib/sixteen_bytes

fn sixteen_group(group: Group, numbers: vec4<u32>) -> Group {
    return Group(
        sixteen_vectors(numbers, group.low),
        sixteen_vectors(numbers, group.high),
        group.scale,
        group.minimum,
    );
}

fn sixteen_vectors(numbers: vec4<u32>, quants: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(
        sixteen_bytes(numbers, quants.x), sixteen_bytes(numbers, quants.y),
        sixteen_bytes(numbers, quants.z), sixteen_bytes(numbers, quants.w),
    );
}
