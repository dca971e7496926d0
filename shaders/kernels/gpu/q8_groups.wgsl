// y = x, or x · weight, in eight bits as q8_activations and q8_weighted make it, by eight lanes a group
// of 32 values: hardware has more lanes than groups, and neighbours read what lies side by side.
// @import vec4/f32 as x
// @import vec4/f32 as weight
// @import lib/grid
// @import lib/q8

const WG: u32 = 64u;
const WEIGHTED: bool = false;
const PLANAR: bool = false;

struct Params { size: u32, groups: u32, x_offset: u32, weight_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> lane_largest: array<u32, WG>;
var<workgroup> lane_sums: array<i32, WG>;
var<workgroup> lane_squares: array<f32, WG>;

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
    let own = x_load4(params.x_offset / 4u + group * 8u + part);
    var values = own;
    if WEIGHTED {
        values *= weight_load4(params.weight_offset / 4u + group % params.groups * 8u + part);
    }
    let bits = bitcast<vec4<u32>>(abs(values));
    lane_largest[lane] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    lane_squares[lane] = dot(own, own);
    workgroupBarrier();
    var largest = 0u;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        largest = max(largest, lane_largest[lane - part + k]);
    }
    let by = q8_scale(largest);
    let quants = q8_quants(values, by);
    lane_sums[lane] = quants.x + quants.y + quants.z + quants.w;
    workgroupBarrier();
    if i / 8u >= params.size {
        return;
    }
    y[place(group, part)] = pack4xI8(quants);
    if part == 0u {
        put_tail(group, lane, by);
    }
}

fn put_tail(group: u32, lane: u32, by: Q8Scale) {
    var all = 0;
    var first = 0;
    var squares = 0.0;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        all += lane_sums[lane + k];
        if k < 4u {
            first = all;
        }
        squares += lane_squares[lane + k];
    }
    let tail = q8_tail(by, all, first, squares);
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        y[place(group, 8u + k)] = tail[k];
    }
}

// Where a word of a group goes, see lib/q8_store.
fn place(group: u32, word: u32) -> u32 {
    return select(group * 12u + word, (word / 4u * params.size + group) * 4u + word % 4u, PLANAR);
}
