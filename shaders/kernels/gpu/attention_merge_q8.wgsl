// As attention_merge.wgsl, and in eight bits as q8_activations makes it: eight lanes join a group of 32
// values. They share the maximum over splits, and each reads every split's values of its own.
// @import kernels/gpu/lib/eight_lanes
// @import kernels/gpu/lib/round_q8 as rounding
// @import kernels/gpu/lib/eight_lanes_subgroup as eight

const LOWEST: f32 = -3.4028234e38;
const AT_ONCE: u32 = 8u;         // splits that a lane asks for before it uses one

struct Params { size: u32, splits: u32, vec4s: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

fn compute_part(place: Place, lane: u32) {
    let values = joined(place.group * 8u + place.part, place.part);
    rounding_put(place, values, values, lane);
}

// Vector `vec4_index` of the result; the eight lanes are in one head.
fn joined(vec4_index: u32, part: u32) -> vec4<f32> {
    let width = params.vec4s + 1u;
    let first = vec4_index / params.vec4s * params.splits * width;
    let largest = largest_of(first + params.vec4s, width, part);
    var sum = vec4<f32>(0.0);
    var total = 0.0;
    for (var start = 0u; start < params.splits; start += AT_ONCE) {
        // @unroll
        for (var s = 0u; s < AT_ONCE; s++) {
            let at_s = first + min(start + s, params.splits - 1u) * width;
            let tail_s = x[at_s + params.vec4s].xy;
            let factor_s = select(0.0, exp(tail_s.x - largest), start + s < params.splits);
            total += tail_s.y * factor_s;
            sum += x[at_s + vec4_index % params.vec4s] * factor_s;
        }
    }
    return sum / max(total, 1e-37);
}

fn largest_of(tails: u32, width: u32, part: u32) -> f32 {
    var largest = LOWEST;
    for (var start = 0u; start < params.splits; start += 8u) {
        largest = max(largest, x[tails + min(start + part, params.splits - 1u) * width].x);
    }
    largest = max(largest, subgroupShuffleXor(largest, 1u));
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    return max(largest, subgroupShuffleXor(largest, 4u));
}
