// Sum of 16 products of bytes where no instruction takes packed bytes, two products by one
// multiplication of words: (a + b · 2^16) · (y + x · 2^16) has a · x + b · y in its upper half.
//
// The lower half has a · y, whose carry is removed from the upper half at the end. `pairs` products
// fit into the halves before that, by the size of a format's weights; 0 stands for signed weights,
// of which one fits.

// Of each word of 16 values y + x · 2^16: for its first and third byte, and for its second and fourth.
struct Factors { even: vec4<i32>, odd: vec4<i32> }

fn factors(words: vec4<u32>) -> Factors {
    return Factors(
        (bitcast<vec4<i32>>(words << vec4<u32>(24u)) >> vec4<u32>(8u))
            + (bitcast<vec4<i32>>(words << vec4<u32>(8u)) >> vec4<u32>(24u)),
        ((bitcast<vec4<i32>>(words << vec4<u32>(16u)) >> vec4<u32>(24u)) << vec4<u32>(16u))
            + (bitcast<vec4<i32>>(words) >> vec4<u32>(24u)),
    );
}

fn sum16(weights: vec4<u32>, x: Factors, pairs: u32) -> i32 {
    let even = even_bytes(weights, pairs) * x.even;
    let odd = even_bytes(weights >> vec4<u32>(8u), pairs) * x.odd;
    if pairs == 0u {
        let sums = upper(even) + upper(odd);
        return sums.x + sums.y + sums.z + sums.w;
    }
    let both = even + odd;
    if pairs == 8u {
        return upper(vec4<i32>(both.x + both.y + both.z + both.w)).x;
    }
    if pairs == 4u {
        let sums = upper(vec4<i32>(both.xz + both.yw, 0, 0));
        return sums.x + sums.y;
    }
    let sums = upper(both);
    return sums.x + sums.y + sums.z + sums.w;
}

// The first and third byte of words in halves of their own; a sign takes 256 off.
fn even_bytes(words: vec4<u32>, pairs: u32) -> vec4<i32> {
    let bytes = words & vec4<u32>(0x00ff00ffu);
    let signs = (words & vec4<u32>(0x00800080u)) << vec4<u32>(1u);
    return bitcast<vec4<i32>>(bytes - select(vec4<u32>(0u), signs, pairs == 0u));
}

// A lower half from -2^15 to 2^15 - 1 takes nothing or one from the upper half; a half makes up for that.
fn upper(sums: vec4<i32>) -> vec4<i32> {
    return (sums + 32768) >> vec4<u32>(16u);
}
