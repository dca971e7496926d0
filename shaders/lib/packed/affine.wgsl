// Values of codes with a scale and a bias for each group.
// @import lib/packed/codes
// @import formats/load/f32 as scales
// @import formats/load/f32 as biases

const GROUP: u32 = 64u;

fn weights8(row: u32, first: u32) -> Eight {
    let codes = codes8(row, first);
    let group = row * params.groups + first / GROUP;
    let scale = scales_load(params.scales_offset + group);
    let bias = biases_load(params.biases_offset + group);
    return Eight(vec4<f32>(codes.low) * scale + bias, vec4<f32>(codes.high) * scale + bias);
}
