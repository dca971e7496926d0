// Q8_1: value = quant · scale, as Q8_0; the sums that blocks also have are left on the host.
// @import lib/blocks/half_at

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let first = buf_quants[group * 2u];
    let second = buf_quants[group * 2u + 1u];
    let scale = half_at(buf_scales[group / 2u], group);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = vec4<f32>(unpack4xI8(first[i])) * scale;
        (*values)[i + 4u] = vec4<f32>(unpack4xI8(second[i])) * scale;
    }
}
