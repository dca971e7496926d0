// y = an operation on integers a and b of 64 bits, value by value, with broadcasting.
// @import lib/elementwise/wide
// @import lib/wide/add as operation
// @import formats/bits_store4/wide as y

fn value(i: u32) -> vec2<u32> {
    return operation_of(a_value(i), b_value(i));
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            y_store4(i, value(i), value(i + 1u), value(i + 2u), value(i + 3u));
        }
    }
}
