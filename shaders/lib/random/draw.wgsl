// Random numbers of any float type, a word each. The importing file brings `draw`, from numbers u, uniform
// from 0 to 1 and below it, to those wanted, and declares `size`, `key_offset` and `below` in its `Params`.
// @import formats/store/f32 as y
// @import lib/index/grid
// @import lib/random/words

const WG: u32 = 64u;

@group(0) @binding(0) var<storage, read> key: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

// bits / 2³², rounded to nearest even by hand: drivers may round conversions otherwise.
fn fraction(bits: u32) -> f32 {
    let shift = 8u - min(countLeadingZeros(bits), 8u);
    let kept = bits >> shift;
    let rest = bits & ((1u << shift) - 1u);
    let half = (1u << shift) >> 1u;
    let up = rest > half || (rest == half && half > 0u && (kept & 1u) == 1u);
    return f32(kept + u32(up)) * bitcast<f32>((95u + shift) << 23u);
}

fn word(i: u32) -> u32 {
    let words = vec2<u32>(key[params.key_offset], key[params.key_offset + 1u]);
    return random_word(words, params.size, min(i, params.size - 1u));
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        let u = vec4<f32>(
            fraction(word(i)), fraction(word(i + 1u)), fraction(word(i + 2u)), fraction(word(i + 3u))
        );
        y_store4(i, draw(min(u, vec4<f32>(params.below))));
    }
}
