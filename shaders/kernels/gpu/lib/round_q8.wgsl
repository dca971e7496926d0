// A group in eight bits, as q8_activations makes it, by the eight lanes that share it: a word of quants
// each, and the last four words. The importing file has `y`, in words, and `eight`, which exchanges.
// @import lib/q8/q8

const PLANAR: bool = false;

// A lane's part of a group, of how many groups, and whether it is stored.
struct Place { group: u32, groups: u32, part: u32, there: bool }

// Round a lane's vector; squares are summed of `own`. All lanes come by, as they exchange values.
fn buf_put(place: Place, values: vec4<f32>, own: vec4<f32>, lane: u32) -> Q8Scale {
    let by = q8_scale(eight_max(largest_bits(values), lane));
    let quants = q8_quants(values, by);
    let sum = f32(quants.x + quants.y + quants.z + quants.w);
    let totals = eight_totals(sum, dot(own, own), lane);
    if place.there {
        y[place_of_word(place, place.part)] = pack4xI8(quants);
    }
    if place.there && place.part == 0u {
        let tail = q8_tail(by, i32(totals.all), i32(totals.first), totals.squares);
        // @unroll
        for (var k = 0u; k < 4u; k++) {
            y[place_of_word(place, 8u + k)] = tail[k];
        }
    }
    return by;
}

fn largest_bits(values: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(abs(values));
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn place_of_word(at: Place, word: u32) -> u32 {
    return select(at.group * 12u + word, (word / 4u * at.groups + at.group) * 4u + word % 4u, PLANAR);
}
