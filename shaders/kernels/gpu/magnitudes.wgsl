// y[i] = the largest magnitude of part i of x, of `part` vectors of four. A work group takes a part.
// @import formats/vec4/f32 as x

const WG: u32 = 256u;

struct Params { vectors: u32, part: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> largest: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.x * params.part;
    let end = min(first + params.part, params.vectors);
    // Magnitudes are compared by their bits, so that a NaN is the largest.
    var most = vec4<u32>(0u);
    for (var v = first + lane; v < end; v += WG) {
        most = max(most, bitcast<vec4<u32>>(abs(x_load4(params.x_offset / 4u + v))));
    }
    largest[lane] = max(max(most.x, most.y), max(most.z, most.w));
    for (var step = WG / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    if lane == 0u {
        y[group.x] = bitcast<f32>(largest[0]);
    }
}
