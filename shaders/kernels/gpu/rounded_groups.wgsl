// y = x, or x · weight, in groups of 32 values rounded to eight bits or f16, by eight lanes a group:
// GPUs have more lanes than groups, and neighbours read what lies side by side.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import kernels/gpu/lib/eight_lanes
// @import kernels/gpu/lib/round_q8 as rounding
// @import kernels/gpu/lib/eight_lanes_workgroup as eight

const WEIGHTED: bool = false;

struct Params { size: u32, groups: u32, x_offset: u32, weight_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

fn compute_part(place: Place, lane: u32) {
    let own = x_load4(params.x_offset / 4u + place.group * 8u + place.part);
    var values = own;
    if WEIGHTED {
        let vec4_index = place.group % params.groups * 8u + place.part;
        values *= weight_load4(params.weight_offset / 4u + vec4_index);
    }
    rounding_put(place, values, own, lane);
}
