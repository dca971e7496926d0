// What a product rounds: its sums times the weight of the norm that follows, which also are stored.
// @import formats/vec4/f32 as scale

@group(0) @binding(0) var<storage, read_write> total: array<vec4<f32>>;

fn buf_weighted(at: u32, row: u32, sums: vec4<f32>, there: bool) -> vec4<f32> {
    if there {
        total[at / 4u] = sums;
    }
    return sums * scale_load4((params.scale_offset + row) / 4u);
}
