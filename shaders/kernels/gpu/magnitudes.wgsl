// y[i] = the largest finite magnitude of part i of x, of `part` vectors of four. A work group takes a part.
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
    // By their bits, as compilers take floats for finite. A NaN or an infinity stays so by any power of two, and by
    // one of its own all other values would be zeros.
    var most = vec4<u32>(0u);
    for (var v = first + lane; v < end; v += WG) {
        let bits_v = bitcast<vec4<u32>>(x_load4(params.x_offset / 4u + v)) & vec4<u32>(0x7fffffffu);
        most = max(most, select(bits_v, vec4<u32>(0u), bits_v >= vec4<u32>(0x7f800000u)));
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
