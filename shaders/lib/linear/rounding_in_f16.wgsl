// A group of results in f16, rounded by one lane as `f16_activations` does, without arithmetic in f16. The
// importing file has `y`, in words.
// @import lib/q8/parts

const buf_PLANAR: bool = false;
const buf_NIBBLES: bool = false;  // pairs of values as factors of a nibble and of its byte
// Biased exponents: groups below the first, 2^-100, count as zero; those above the second keep it.
const buf_SMALLEST: u32 = 27u;
const buf_LARGEST: u32 = 249u;
const buf_INFINITY: u32 = 0x7f800000u;
const buf_NAN: u32 = 0x7fc00000u;

// `squares` go with the group, whatever it was multiplied with.
fn buf_put(group: u32, values: ptr<function, array<vec4<f32>, 8>>, squares: f32) {
    let largest = buf_largest(values);
    let plain = largest >= buf_SMALLEST << 23u && largest < buf_INFINITY;
    let exponent = clamp(largest >> 23u, buf_SMALLEST, buf_LARGEST);
    let inverse = bitcast<f32>((buf_LARGEST + 1u - exponent) << 23u);
    let scale = select(0.0, bitcast<f32>((exponent + 4u) << 23u), plain);
    var totals = vec2<f32>(0.0);
    for (var k = 0u; k < 4u; k++) {
        var first = buf_in_f16(select(vec4<f32>(), (*values)[k] * inverse, plain));
        var second = buf_in_f16(select(vec4<f32>(), (*values)[k + 4u] * inverse, plain));
        if buf_NIBBLES {
            second = buf_in_f16(second / 16.0);
            first = buf_in_f16(first - second);
        }
        buf_store(group, k, first);
        buf_store(group, k + 4u, second);
        let stand_for = select(first, first + second, buf_NIBBLES);
        let others = second * select(1.0, 16.0, buf_NIBBLES);
        totals += vec2<f32>(dot(stand_for, vec4<f32>(1.0)), dot(others, vec4<f32>(1.0)));
    }
    let tail = buf_word(group, 16u);
    y[tail] = select(bitcast<u32>(scale), buf_NAN, largest >= buf_INFINITY);
    y[tail + 1u] = bitcast<u32>((totals.x + totals.y) * scale);
    y[tail + 2u] = bitcast<u32>(totals.x * scale);
    y[tail + 3u] = bitcast<u32>(squares);
}

// Bits of the largest magnitude, by which a NaN is the largest.
fn buf_largest(values: ptr<function, array<vec4<f32>, 8>>) -> u32 {
    var bits = vec4<u32>(0u);
    for (var k = 0u; k < 8u; k++) {
        bits = max(bits, bitcast<vec4<u32>>(abs((*values)[k])));
    }
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn buf_in_f16(values: vec4<f32>) -> vec4<f32> {
    let words = vec2<u32>(pack2x16float(values.xy), pack2x16float(values.zw));
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn buf_store(group: u32, vec4_index: u32, values: vec4<f32>) {
    let at = buf_word(group, 2u * vec4_index);
    y[at] = pack2x16float(values.xy);
    y[at + 1u] = pack2x16float(values.zw);
}

// Place of a word of a group: each vector of four may lie in a plane of its own.
fn buf_word(group: u32, word: u32) -> u32 {
    let groups = params.n / PARTS * (params.m / 32u);
    let in_planes = (word / 4u * groups + group) * 4u + word % 4u;
    return select(group * 20u + word, in_planes, buf_PLANAR);
}
