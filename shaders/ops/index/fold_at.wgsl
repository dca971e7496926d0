// y[outer, j, inner] = dst there, folded with all x[outer, k, inner] whose id is j, in the order of ids. Ids
// are sorted, `order` says where each was; a thread an output finds those of its own. So nothing is
// written twice, and sums of floats are the same in every run.
// @import formats/load/f32 as dst
// @import formats/load/f32 as x
// @import lib/reduce_op/sum as reduce_op
// @import lib/index/grid

const WG: u32 = 64u;
// Each pair of outer and inner has ids of its own.
const ALONG: bool = false;

struct Params {
    size: u32,
    count: u32,
    extent: u32,
    inner: u32,
    dst_offset: u32,
    x_offset: u32,
    ids_offset: u32,
    order_offset: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> order: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<reduce_op_Bits>;
@group(0) @binding(3) var<uniform> params: Params;

// First of the sorted ids from `first` on that is not below `id`.
fn lower_bound(first: u32, id: i32) -> u32 {
    var low = 0u;
    var high = params.count;
    while low < high {
        let middle = (low + high) / 2u;
        if ids[params.ids_offset + first + middle] < id {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let outer = i / params.inner / params.extent;
    let inner = i % params.inner;
    let own = i32(i / params.inner % params.extent);
    let first = select(0u, outer * params.count, ALONG);
    var total = reduce_op_take(reduce_op_Value(dst_load(params.dst_offset + i)), 0.0);
    // Ids below zero count from the end, and are sorted first.
    for (var side = 0u; side < 2u; side++) {
        let wanted = own - select(i32(params.extent), 0, side == 1u);
        for (var k = lower_bound(first, wanted); k < params.count; k++) {
            if ids[params.ids_offset + first + k] != wanted {
                break;
            }
            let place = u32(order[params.order_offset + first + k]);
            let at = params.x_offset + (outer * params.count + place) * params.inner + inner;
            total = reduce_op_join(total, reduce_op_take(reduce_op_Value(x_load(at)), 0.0));
        }
    }
    y[i] = reduce_op_bits(total, 1.0);
}
