// y[row] = index of the largest value of the row, NaN above all, the first of equals: one work group a row.
// @import formats/load/f32 as x
// @import lib/index/group_row
// @import lib/sort/order

// Values that a thread asks for before it compares any: one row keeps few threads busy, and a load takes
// longer than all that follows it.
const AT_ONCE: u32 = 8u;

struct Params { rows: u32, cols: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;

var<workgroup> keys: array<u32, WG>;
var<workgroup> places: array<u32, WG>;

fn group_row(row: u32, lane: u32) {
    let start = params.x_offset + row * params.cols;
    var best = 0u;  // less than any value's
    var place = 0u;
    for (var begin = lane; begin < params.cols; begin += AT_ONCE * WG) {
        var found = array<u32, AT_ONCE>();
        // @unroll
        for (var t = 0u; t < AT_ONCE; t++) {
            found[t] = key_of_f32(x_load(start + min(begin + t * WG, params.cols - 1u)));
        }
        // @unroll
        for (var t = 0u; t < AT_ONCE; t++) {
            if found[t] > best {
                best = found[t];
                place = min(begin + t * WG, params.cols - 1u);
            }
        }
    }
    keys[lane] = best;
    places[lane] = place;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            take_better(lane, lane + half);
        }
        workgroupBarrier();
    }
    if lane == 0u {
        y[row] = i32(places[0]);
    }
}

fn take_better(left: u32, right: u32) {
    let better = keys[right] > keys[left];
    if better || (keys[right] == keys[left] && places[right] < places[left]) {
        keys[left] = keys[right];
        places[left] = places[right];
    }
}
