// Codes of BITS bits each, packed in words from the low bits on: eight of a row at a time, from one
// whose number is a multiple of eight. The importing file's `Params` have `packed_offset` and `words`.

const BITS: u32 = 4u;

@group(0) @binding(0) var<storage, read> packed: array<u32>;

struct Codes { low: vec4<u32>, high: vec4<u32> }
struct Eight { low: vec4<f32>, high: vec4<f32> }

fn codes8(row: u32, first: u32) -> Codes {
    let bit = first * BITS;
    let at = params.packed_offset + row * params.words + bit / 32u;
    let mask = vec4<u32>((1u << BITS) - 1u);
    let steps = vec4<u32>(0u, 1u, 2u, 3u) * BITS;
    if BITS == 8u {
        return Codes(unpack4xU8(packed[at]), unpack4xU8(packed[at + 1u]));
    }
    if BITS == 4u || BITS == 2u {
        let word = vec4<u32>(packed[at] >> (bit % 32u));
        return Codes((word >> steps) & mask, (word >> (steps + 4u * BITS)) & mask);
    }
    // Eight codes are in two words at most, which are brought together from the first code on.
    let shift = bit % 32u;
    var low = packed[at] >> shift;
    var high = 0u;
    if shift + 8u * BITS > 32u {
        let next = packed[at + 1u];
        low |= select(next << (32u - shift), 0u, shift == 0u);
        high = next >> shift;
    }
    var codes: array<u32, 8>;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        let from_k = (k * BITS) & 31u;
        codes[k] = select(high, low, k * BITS < 32u) >> from_k;
        if k * BITS < 32u && from_k + BITS > 32u {
            codes[k] |= high << ((32u - from_k) & 31u);
        }
    }
    return Codes(
        vec4<u32>(codes[0], codes[1], codes[2], codes[3]) & mask,
        vec4<u32>(codes[4], codes[5], codes[6], codes[7]) & mask,
    );
}
