// y = x, or x · weight, in f16, by eight lanes a group of 32 values: sixteen words of pairs, then the
// power of two that they lack, the sum of the group, of its first half, and the sum of the squares of x.
// A group's largest magnitude becomes an eighth or less, so that no sum of products overflows.
//
// Where a weight has two nibbles a byte, l + 16 h, whose values are u and v, l u + h v is
// l (u - v / 16) + (l + 16 h) v / 16: NIBBLES has these factors instead, and no h needs to be unpacked.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import lib/index/grid

const WG: u32 = 64u;
const WEIGHTED: bool = false;
const PLANAR: bool = false;
const NIBBLES: bool = false;
// Biased exponents: groups below the first, 2^-100, count as zero; those above the second keep it.
const SMALLEST: u32 = 27u;
const LARGEST: u32 = 249u;
const INFINITY: u32 = 0x7f800000u;
const NAN: u32 = 0x7fc00000u;

struct Params { size: u32, groups: u32, x_offset: u32, weight_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> lane_largest: array<u32, WG>;
var<workgroup> lane_sums: array<f32, WG>;
var<workgroup> lane_squares: array<f32, WG>;
var<workgroup> lane_values: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = grid_index(id, groups, WG);
    // Lanes beyond the last group repeat it, since all reach the barriers, and store nothing.
    let group = min(i / 8u, params.size - 1u);
    let part = lane % 8u;
    let before = x_load4(params.x_offset / 4u + group * 8u + part);
    var values = before;
    if WEIGHTED {
        values *= weight_load4(params.weight_offset / 4u + group % params.groups * 8u + part);
    }
    // Magnitudes are compared by their bits, so that a NaN is the largest.
    let bits = bitcast<vec4<u32>>(abs(values));
    lane_largest[lane] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    lane_squares[lane] = dot(before, before);
    workgroupBarrier();
    var largest = 0u;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        largest = max(largest, lane_largest[lane - part + k]);
    }
    let plain = largest >= SMALLEST << 23u && largest < INFINITY;
    let exponent = clamp(largest >> 23u, SMALLEST, LARGEST);
    let inverse = bitcast<f32>((LARGEST + 1u - exponent) << 23u);
    var pairs = in_f16(select(vec4<f32>(), values * inverse, plain));
    var stands_for = pairs;
    if NIBBLES {
        lane_values[lane] = in_f16(pairs / 16.0);
        workgroupBarrier();
        let second = lane_values[lane | 4u];
        pairs = select(in_f16(pairs - second), second, part >= 4u);
        stands_for = select(pairs + second, second * 16.0, part >= 4u);
    }
    lane_sums[lane] = dot(stands_for, vec4<f32>(1.0));
    workgroupBarrier();
    if i / 8u >= params.size {
        return;
    }
    y[place(group, 2u * part)] = pack2x16float(pairs.xy);
    y[place(group, 2u * part + 1u)] = pack2x16float(pairs.zw);
    if part == 0u {
        let scale = select(0.0, bitcast<f32>((exponent + 4u) << 23u), plain);
        put_tail(group, lane, scale, select(bitcast<u32>(scale), NAN, largest >= INFINITY));
    }
}

fn in_f16(values: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(vec4<f16>(values));
}

fn put_tail(group: u32, lane: u32, scale: f32, given: u32) {
    var all = 0.0;
    var first = 0.0;
    var squares = 0.0;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        all += lane_sums[lane + k];
        if k < 4u {
            first = all;
        }
        squares += lane_squares[lane + k];
    }
    y[place(group, 16u)] = given;
    y[place(group, 17u)] = bitcast<u32>(all * scale);
    y[place(group, 18u)] = bitcast<u32>(first * scale);
    y[place(group, 19u)] = bitcast<u32>(squares);
}

// Where a word of a group goes: behind those of the group before it, or each vector of four into a
// plane of its own, where neighbouring lanes read what lies side by side.
fn place(group: u32, word: u32) -> u32 {
    return select(group * 20u + word, (word / 4u * params.size + group) * 4u + word % 4u, PLANAR);
}
