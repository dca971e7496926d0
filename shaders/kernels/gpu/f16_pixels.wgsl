// y = x in f16, divided by the power of two that brings its largest magnitude to 2^14 or above; then a pixel of zeros,
// and the exponent of that power. A work group takes `step` vectors of four.
// @import formats/vec4/f32 as x
// @import formats/load/f32 as magnitudes

const WG: u32 = 256u;

struct Params { vectors: u32, zeros: u32, step: u32, parts: u32, x_offset: u32, magnitudes_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f16>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> largest: atomic<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    var most = 0u;
    for (var i = lane; i < params.parts; i += WG) {
        most = max(most, bitcast<u32>(magnitudes_load(params.magnitudes_offset + i)));
    }
    if lane == 0u {
        atomicStore(&largest, 0u);
    }
    workgroupBarrier();
    atomicMax(&largest, most);
    workgroupBarrier();
    // A tensor of zeros keeps them; what is not finite stays so.
    let biased = clamp(atomicLoad(&largest) >> 23u, 27u, 249u);
    let inverse = bitcast<f32>((268u - biased) << 23u);
    let first = (group.x + groups.x * group.y) * params.step;
    let end = min(first + params.step, params.vectors);
    for (var v = first + lane; v < end; v += WG) {
        y[v] = vec4<f16>(x_load4(params.x_offset / 4u + v) * inverse);
    }
    if first == 0u {
        for (var v = lane; v < params.zeros; v += WG) {
            y[params.vectors + v] = vec4<f16>();
        }
        if lane < 2u {
            let exponent = select(0.0h, f16(i32(biased) - 141), lane == 0u);
            y[params.vectors + params.zeros + lane] = vec4<f16>(exponent, 0.0h, 0.0h, 0.0h);
        }
    }
}
