// y[row] = index of the largest value of the row, NaN above all, the first of equals: one work group a row.
// @import formats/load/f32 as x
// @import lib/index/group_row
// @import lib/sort/order

struct Params { rows: u32, cols: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;

var<workgroup> keys: array<u32, WG>;
var<workgroup> places: array<u32, WG>;

fn group_row(row: u32, lane: u32) {
    let start = params.x_offset + row * params.cols;
    var best = key_of_f32(x_load(start + min(lane, params.cols - 1u)));
    var place = min(lane, params.cols - 1u);
    for (var i = lane + WG; i < params.cols; i += WG) {
        let key = key_of_f32(x_load(start + i));
        if key > best {
            best = key;
            place = i;
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
