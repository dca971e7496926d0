// y = x in f16, a row at a time: divided by the power of two that brings its largest magnitude to
// 2^14 or above, and behind the values the exponent of that power. A work group takes a row.
// @import formats/vec4/f32 as x

const WG: u32 = 128u;

struct Params { rows: u32, vectors: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f16>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> largest: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.x + groups.x * group.y;
    let first_in = params.x_offset / 4u + row * params.vectors;
    let first_out = row * (params.vectors + 2u);
    let there = row < params.rows;
    // Magnitudes are compared by their bits, so that a NaN is the largest.
    var most = vec4<u32>(0u);
    for (var v = lane; there && v < params.vectors; v += WG) {
        most = max(most, bitcast<vec4<u32>>(abs(x_load4(first_in + v))));
    }
    largest[lane] = max(max(most.x, most.y), max(most.z, most.w));
    for (var step = WG / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    // A row of zeros keeps them; what is not finite stays so.
    let biased = clamp(largest[0] >> 23u, 27u, 249u);
    let exponent = i32(biased) - 141;
    let inverse = bitcast<f32>((268u - biased) << 23u);
    for (var v = lane; there && v < params.vectors; v += WG) {
        y[first_out + v] = vec4<f16>(x_load4(first_in + v) * inverse);
    }
    if there && lane < 2u {
        y[first_out + params.vectors + lane] = vec4<f16>(select(0.0h, f16(exponent), lane == 0u), 0.0h, 0.0h, 0.0h);
    }
}
