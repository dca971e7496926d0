// Four-bit quants that stand for 16 numbers, i8 in four words.

const IQ4_NUMBERS: vec4<u32> = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);

// Numbers of four quants, a byte each.
fn sixteen(numbers: vec4<u32>, quants: u32) -> vec4<f32> {
    let q = unpack4xU8(quants);
    let low = select(vec4<u32>(numbers.x), vec4<u32>(numbers.y), q >= vec4<u32>(4u));
    let high = select(vec4<u32>(numbers.z), vec4<u32>(numbers.w), q >= vec4<u32>(12u));
    let words = select(low, high, q >= vec4<u32>(8u));
    let top = words << (vec4<u32>(24u) - 8u * (q & vec4<u32>(3u)));
    return vec4<f32>(bitcast<vec4<i32>>(top) >> vec4<u32>(24u));
}
