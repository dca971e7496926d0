// Values in FP4 with a power of two for every 32.
// @import lib/packed/codes
// @import lib/packed/small_floats
// @import formats/load/u8 as scales

const GROUP: u32 = 32u;

fn weights8(row: u32, first: u32) -> Eight {
    let codes = codes8(row, first);
    let group = row * params.groups + first / GROUP;
    let scale = from_e8m0(scales_load(params.scales_offset + group));
    return Eight(from_e2m1(codes.low) * scale, from_e2m1(codes.high) * scale);
}
