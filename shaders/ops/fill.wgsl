// y = one value everywhere, given as its bits.
// @import formats/bits_store4/word as y
// @import lib/index/grid

const WG: u32 = 64u;
const TURNS: u32 = 1u;

struct Params { size: u32, low: u32, high: u32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var turn = 0u; turn < TURNS; turn++) {
        let i = 4u * turn_index(id, groups, WG, TURNS, turn);
        if i < params.size {
            let bits = vec2<u32>(params.low, params.high);
            y_store4(i, bits, bits, bits, bits);
        }
    }
}
