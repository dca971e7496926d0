// y = x in eight bits, a group of 32 values a thread: eight words of quants, the scale, and sums of
// quants times the scale, of all and of each half.
// @import vec4/f32 as x
// @import lib/grid

const WG: u32 = 64u;
// A group whose largest magnitude is below 2^-100 counts as zero; infinity and NaN make it NaN.
const SMALLEST: u32 = 0x0d800000u;
const INFINITY: u32 = 0x7f800000u;
const NAN: u32 = 0x7fc00000u;

struct Params { size: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    var values: array<vec4<f32>, 8>;
    // Magnitudes are compared by their bits, so that a NaN is the largest.
    var bits = vec4<u32>(0u);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        values[k] = x_load4(params.x_offset / 4u + i * 8u + k);
        bits = max(bits, bitcast<vec4<u32>>(abs(values[k])));
    }
    let largest = max(max(bits.x, bits.y), max(bits.z, bits.w));
    let plain = largest >= SMALLEST && largest < INFINITY;
    let inverse = select(0.0, 127.0 / bitcast<f32>(largest), plain);
    let scale = select(0.0, bitcast<f32>(largest) / 127.0, plain);
    var words: array<u32, 8>;
    var totals = array<i32, 2>(0, 0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        let quants_k = select(vec4<i32>(0), vec4<i32>(round(values[k] * inverse)), vec4<bool>(plain));
        words[k] = pack4xI8(quants_k);
        totals[k / 4u] += quants_k.x + quants_k.y + quants_k.z + quants_k.w;
    }
    let given = select(bitcast<u32>(scale), NAN, largest >= INFINITY);
    let sums = vec3<i32>(totals[0] + totals[1], totals[0], totals[1]);
    y[i * 3u] = vec4<u32>(words[0], words[1], words[2], words[3]);
    y[i * 3u + 1u] = vec4<u32>(words[4], words[5], words[6], words[7]);
    y[i * 3u + 2u] = vec4<u32>(given, bitcast<vec3<u32>>(vec3<f32>(sums) * scale));
}
