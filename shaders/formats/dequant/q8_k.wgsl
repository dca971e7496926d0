// Q8_K: value = quant · scale, an f32 scale per 256; 32 quants are two vec4 of words. The sums that
// blocks also have are left on the host.

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_supers: array<f32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let first = buf_quants[group * 2u];
    let second = buf_quants[group * 2u + 1u];
    let scale = buf_supers[group / 8u];
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = vec4<f32>(unpack4xI8(first[i])) * scale;
        (*values)[i + 4u] = vec4<f32>(unpack4xI8(second[i])) * scale;
    }
}
