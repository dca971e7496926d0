// TQ1_0: value = (trit - 1) · scale, five trits a byte, an f16 scale per 256. A byte is a fraction
// in base 3: times 3^n it begins with trit n. Of a super-block, bytes 0 to 31 hold trits of groups
// 0 to 4, bytes 32 to 47 those of groups 5, 6 and half of 7, and four bytes of four trits the last
// 16.
// @import lib/blocks/half_at

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;

const TQ1_POWERS: vec4<u32> = vec4<u32>(1u, 3u, 9u, 27u);

// First trits of the four bytes of a word times `power`, less one.
fn buf_trits(word: u32, power: u32) -> vec4<f32> {
    let even = (((word & 0x00ff00ffu) * power) & 0x00ff00ffu) * 3u;
    let odd = ((((word >> 8u) & 0x00ff00ffu) * power) & 0x00ff00ffu) * 3u;
    return vec4<f32>(unpack4xU8(((even >> 8u) & 0x00030003u) | (odd & 0x03000300u))) - 1.0;
}

fn buf_power(n: u32) -> u32 {
    return select(TQ1_POWERS[n & 3u], 81u, n == 4u);
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let block = group / 8u;
    let sub = group & 7u;
    let scale = half_at(buf_supers[block / 2u], block);
    let late = sub >= 5u;
    let first = buf_quants[block * 3u + select(0u, 2u, late)];
    let second = buf_quants[block * 3u + select(1u, 2u, late)];
    let power = buf_power(select(sub, 2u * (sub - 5u), late));
    let next_power = buf_power(select(sub, 2u * (sub - 5u) + 1u, late));
    let high = buf_high[block];
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let last_i = sub == 7u;
        let word_i = select(second[i], high, last_i);
        (*values)[i] = buf_trits(first[i], power) * scale;
        (*values)[i + 4u] = buf_trits(word_i, select(next_power, TQ1_POWERS[i], last_i)) * scale;
    }
}
