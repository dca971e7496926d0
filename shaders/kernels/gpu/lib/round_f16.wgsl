// A group in f16, as f16_activations makes it, by the eight lanes that share it: two words of pairs
// each, then the power of two that they lack, the sum of the group, of its first half, and of squares.
// A group's largest magnitude becomes an eighth or less, so that no sum of products overflows.
//
// Where a weight has two nibbles a byte, l + 16 h, whose values are u and v, l u + h v is
// l (u - v / 16) + (l + 16 h) v / 16: NIBBLES has these factors instead, and no h needs to be unpacked.
//
// The importing file has `y`, in words, and `eight`, which exchanges.

const PLANAR: bool = false;
const NIBBLES: bool = false;
// Biased exponents: groups below the first, 2^-100, count as zero; those above the second keep it.
const SMALLEST: u32 = 27u;
const LARGEST: u32 = 249u;
const INFINITY: u32 = 0x7f800000u;
const NAN: u32 = 0x7fc00000u;

// A lane's part of a group, of how many groups, and whether it is stored.
struct Place { group: u32, groups: u32, part: u32, there: bool }

// Round a lane's vector; squares are summed of `own`. All lanes come by, as they exchange values.
fn buf_put(place: Place, values: vec4<f32>, own: vec4<f32>, lane: u32) {
    // Magnitudes are compared by their bits, so that a NaN is the largest.
    let bits = bitcast<vec4<u32>>(abs(values));
    let largest = eight_max(max(max(bits.x, bits.y), max(bits.z, bits.w)), lane);
    let plain = largest >= SMALLEST << 23u && largest < INFINITY;
    let exponent = clamp(largest >> 23u, SMALLEST, LARGEST);
    let inverse = bitcast<f32>((LARGEST + 1u - exponent) << 23u);
    var pairs = in_f16(values * select(0.0, inverse, plain));
    var stands_for = pairs;
    if NIBBLES {
        let second = eight_second(in_f16(pairs / 16.0), lane);
        let is_second = place.part >= 4u;
        pairs = select(in_f16(pairs - second), second, is_second);
        stands_for = select(pairs + second, second * 16.0, is_second);
    }
    let totals = eight_totals(dot(stands_for, vec4<f32>(1.0)), dot(own, own), lane);
    if place.there {
        let at = 2u * place_of_two(place);
        y[at] = pack2x16float(pairs.xy);
        y[at + 1u] = pack2x16float(pairs.zw);
    }
    if place.there && place.part == 0u {
        let scale = select(0.0, bitcast<f32>((exponent + 4u) << 23u), plain);
        y[place_of_word(place, 16u)] = select(bitcast<u32>(scale), NAN, largest >= INFINITY);
        y[place_of_word(place, 17u)] = bitcast<u32>(totals.all * scale);
        y[place_of_word(place, 18u)] = bitcast<u32>(totals.first * scale);
        y[place_of_word(place, 19u)] = bitcast<u32>(totals.squares);
    }
}

fn in_f16(values: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(vec4<f16>(values));
}

// Where a lane's two words go, in twos.
fn place_of_two(at: Place) -> u32 {
    let planar = (at.part / 2u * at.groups + at.group) * 2u + at.part % 2u;
    return select(at.group * 10u + at.part, planar, PLANAR);
}

// Where a word of a group goes: behind those of the group before it, or each vector of four into a
// plane of its own, where neighbouring lanes read what lies side by side.
fn place_of_word(at: Place, word: u32) -> u32 {
    return select(at.group * 20u + word, (word / 4u * at.groups + at.group) * 4u + word % 4u, PLANAR);
}
