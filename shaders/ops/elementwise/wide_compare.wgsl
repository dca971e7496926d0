// y = whether a is below, the same as, or above b, integers of 64 bits, with broadcasting.
// @import lib/elementwise/wide
// @import formats/store/bool as y

const BELOW: bool = true;
const SAME: bool = false;
const ABOVE: bool = false;

fn outcome(i: u32) -> u32 {
    let a = a_value(i);
    let b = b_value(i);
    if all(a == b) {
        return u32(SAME);
    }
    return select(u32(ABOVE), u32(BELOW), wide_below(a, b));
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            y_store4(i, vec4<u32>(outcome(i), outcome(i + 1u), outcome(i + 2u), outcome(i + 3u)));
        }
    }
}
