// Key of a value in storage.
// @import formats/load/f32 as x
// @import lib/sort/order

const INTEGER: bool = false;

fn key_at(at: u32) -> u32 {
    if INTEGER {
        return key_of_integer(u32(x_load(at)));
    }
    return key_of_f32(f32(x_load(at)));
}
