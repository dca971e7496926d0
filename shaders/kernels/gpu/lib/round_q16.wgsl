// A group in sixteen bits, as q16_activations makes it, by the eight lanes that share it: a word of upper
// bytes each, one of lower bytes, and the last four words. The importing file has `y`, in words, and
// `eight`, which exchanges.
// @import lib/q8/q16

// A lane's part of a group, of how many groups, and whether it is stored.
struct Place { group: u32, groups: u32, part: u32, there: bool }

// Round a lane's vector; squares are summed of `own`. All lanes come by, as they exchange values.
fn buf_put(place: Place, values: vec4<f32>, own: vec4<f32>, lane: u32) {
    let bits = bitcast<vec4<u32>>(abs(values));
    let by = q16_scale(eight_max(max(max(bits.x, bits.y), max(bits.z, bits.w)), lane));
    let quants = q8_quants(values, by);
    // Sums of 32 have 20 bits, which f32 has.
    let sum = f32(quants.x + quants.y + quants.z + quants.w);
    let totals = eight_totals(sum, dot(own, own), lane);
    if place.there {
        let words = q16_words(quants);
        y[place_of_word(place, place.part)] = words.x;
        y[place_of_word(place, 8u + place.part)] = words.y;
    }
    if place.there && place.part == 0u {
        let tail = q8_tail(by, i32(totals.all), i32(totals.first), totals.squares);
        // @unroll
        for (var k = 0u; k < 4u; k++) {
            y[place_of_word(place, 16u + k)] = tail[k];
        }
    }
}

// Each vector of four words of a group lies in a plane of its own.
fn place_of_word(at: Place, word: u32) -> u32 {
    return (word / 4u * at.groups + at.group) * 4u + word % 4u;
}
