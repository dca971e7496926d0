// y = x, or x · weight, in groups of 32 values rounded to eight bits or f16, by eight lanes a group:
// GPUs have more lanes than groups, and neighbours read what lies side by side.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import lib/index/grid
// @import kernels/gpu/lib/round_q8 as rounding
// @import kernels/gpu/lib/eight_lanes_workgroup as eight

const WG: u32 = 64u;
const WEIGHTED: bool = false;

struct Params { size: u32, groups: u32, x_offset: u32, weight_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = grid_index(id, groups, WG);
    // Lanes beyond the last group repeat it, since all exchange values, and store nothing.
    let group = min(i / 8u, params.size - 1u);
    let part = lane % 8u;
    let own = x_load4(params.x_offset / 4u + group * 8u + part);
    var values = own;
    if WEIGHTED {
        values *= weight_load4(params.weight_offset / 4u + group % params.groups * 8u + part);
    }
    rounding_put(Place(group, params.size, part, i / 8u < params.size), values, own, lane);
}
