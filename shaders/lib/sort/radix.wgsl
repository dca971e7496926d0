// What a pass of a radix sort reads: values; (key, id) pairs; or words, keys whose lower bits, which
// earlier passes sorted by, have made room for the id.
// @import formats/load/f32 as x
// @import lib/sort/order

const INPUT: u32 = 0u;
const VALUES: u32 = 0u;
const PAIRS: u32 = 1u;
const INTEGER: bool = false;
const DESCENDING: bool = false;
const SHIFT: u32 = 0u;
const BINS: u32 = 256u;

fn key_at(at: u32) -> u32 {
    if INPUT != VALUES {
        return u32(x_load(at * select(1u, 2u, INPUT == PAIRS)));
    }
    var key = key_of_f32(f32(x_load(at)));
    if INTEGER {
        key = key_of_integer(u32(x_load(at)));
    }
    return select(key, ~key, DESCENDING);
}

fn digit_of(key: u32) -> u32 {
    return (key >> SHIFT) & (BINS - 1u);
}
