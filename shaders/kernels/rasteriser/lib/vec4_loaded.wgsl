// The eight vec4s of 32 values of x, of which every lane loads all.

fn buf_at(at: u32, lane: u32) -> array<vec4<f32>, 8> {
    return array<vec4<f32>, 8>(
        x_load4(at), x_load4(at + 1u), x_load4(at + 2u), x_load4(at + 3u),
        x_load4(at + 4u), x_load4(at + 5u), x_load4(at + 6u), x_load4(at + 7u),
    );
}
