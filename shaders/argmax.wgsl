// y[row] = index of the largest value of the row, the first of equals: one work group a row.
// @import load/f32 as x
// @import lib/group_row

const LOWEST: f32 = -3.4028234e38;

struct Params { rows: u32, cols: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;

var<workgroup> values: array<f32, WG>;
var<workgroup> places: array<u32, WG>;

fn group_row(row: u32, lane: u32) {
    let start = params.x_offset + row * params.cols;
    var best = x_load(start + min(lane, params.cols - 1u));
    var place = min(lane, params.cols - 1u);
    for (var i = lane + WG; i < params.cols; i += WG) {
        let value = x_load(start + i);
        if value > best {
            best = value;
            place = i;
        }
    }
    values[lane] = best;
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
    let better = values[right] > values[left];
    if better || (values[right] == values[left] && places[right] < places[left]) {
        values[left] = values[right];
        places[left] = places[right];
    }
}
