// Values in FP4 with an FP8 scale for every 16.
// @import lib/packed/codes
// @import lib/packed/small_floats
// @import formats/load/u8 as scales

const GROUP: u32 = 16u;

fn weights8(row: u32, first: u32) -> Eight {
    let codes = codes8(row, first);
    let group = row * params.groups + first / GROUP;
    let scale = from_e4m3(vec4<u32>(scales_load(params.scales_offset + group))).x;
    return Eight(from_e2m1(codes.low) * scale, from_e2m1(codes.high) * scale);
}
