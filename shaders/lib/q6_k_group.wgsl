// A group of Q6_K: words of the lower bits, of the upper two, its two scales in the lowest bytes of a
// word, and d.
// @import lib/group

// Upper bits of 16 values where they belong in a byte: value 4 · j + b has bits 2 · j of byte b.
fn q6_k_upper(word: u32) -> vec4<u32> {
    return vec4<u32>(word << 4u, word << 2u, word, word >> 2u) & vec4<u32>(0x30303030u);
}

fn q6_k_group(low: vec4<u32>, high: vec2<u32>, scales: u32, d: f32) -> Group {
    let scale = vec2<f32>(unpack4xI8(scales).xy) * d;
    let nibbles = nibble_group(low, 0.0, 0.0);
    return Group(
        nibbles.low | q6_k_upper(high.x), nibbles.high | q6_k_upper(high.y), scale, 32.0 * scale,
    );
}
