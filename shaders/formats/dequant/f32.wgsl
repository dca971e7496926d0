// F32 weights, 32 at a time: `group` counts groups of 32 along the rows.

@group(0) @binding(0) var<storage, read> buf: array<vec4<f32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    // @unroll
    for (var i = 0u; i < 8u; i++) {
        (*values)[i] = buf[group * 8u + i];
    }
}
