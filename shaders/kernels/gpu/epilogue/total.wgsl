// What a product rounds: its sums times the weight of the norm that follows, which also are stored.
// @import formats/vec4/f32 as scale

@group(0) @binding(0) var<storage, read_write> total: array<vec4<f32>>;

fn buf_keep(at: u32, sums: vec4<f32>) {
    total[at] = sums;
}

fn buf_weighted(row: u32, sums: vec4<f32>) -> vec4<f32> {
    return sums * scale_load4(params.scale_offset / 4u + row);
}
