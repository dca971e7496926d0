// FP4: a sign, two bits of exponent and one of mantissa. Doubled, and 12 more, it is an integer from 0 to
// 24 without a sign.

const FP4_ONES: vec4<u32> = vec4<u32>(0x11111111u);
const FP4_NIBBLES: vec4<u32> = vec4<u32>(0x0f0f0f0fu);
const FP4_TWELVES: vec4<u32> = vec4<u32>(0x0c0c0c0cu);

// Integers of the low nibbles and of the high ones, a byte each.
struct Above { low: vec4<u32>, high: vec4<u32> }

// Sizes are made while they are still nibbles: 0, 1, 2, 3, 4, 6, 8 and 12 are the three bits below the
// sign, and 1, 2, 3 more from the fifth on, and another 2 for the last.
fn fp4_above(quants: vec4<u32>) -> Above {
    let upper = (quants >> vec4<u32>(2u)) & FP4_ONES;
    let last = upper & (quants >> vec4<u32>(1u)) & quants;
    let size = (quants & vec4<u32>(0x77777777u)) + (quants & (upper | (upper << vec4<u32>(1u))))
        + (last << vec4<u32>(1u));
    let sign = (quants >> vec4<u32>(3u)) & FP4_ONES;
    let below = size & ((sign << vec4<u32>(4u)) - sign);
    let high = (size >> vec4<u32>(4u)) & FP4_NIBBLES;
    let high_below = (below >> vec4<u32>(4u)) & FP4_NIBBLES;
    return Above(
        FP4_TWELVES + (size & FP4_NIBBLES) - ((below & FP4_NIBBLES) << vec4<u32>(1u)),
        FP4_TWELVES + high - (high_below << vec4<u32>(1u)),
    );
}

// Doubled FP4 of four of these integers.
fn fp4_doubled(above: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(above)) - vec4<f32>(12.0);
}
