// u64 values of f32 without their fraction; what is below zero, and NaN, becomes 0.
// @import lib/numeric/wide

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, value: vec4<f32>) {
    for (var k = 0u; k < 4u; k++) {
        let negative = bitcast<u32>(value[k]) > 0x7fffffffu;
        buf[i + k] = select(f32_to_wide(value[k]), vec2<u32>(0u), negative);
    }
}
