// y[row, :] = columns of the row in the order of their values, for rows of up to 1,024: one work group a
// row, merging runs of 1, 2, 4 … in workgroup memory.
// @import formats/load/f32 as x
// @import lib/index/grid
// @import lib/sort/order
// @import lib/sort/merge

const WG: u32 = 64u;
const ROW: u32 = 1024u;
const INTEGER: bool = false;
const DESCENDING: bool = false;

struct Params { rows: u32, cols: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

// Two halves, read and written in turns.
var<workgroup> keys: array<u32, 2048>;
var<workgroup> ids: array<u32, 2048>;
var<private> half: u32;

fn key_at(i: u32) -> u32 {
    return keys[half + i];
}

fn key_of(at: u32) -> u32 {
    var key = key_of_f32(f32(x_load(at)));
    if INTEGER {
        key = key_of_integer(u32(x_load(at)));
    }
    return select(key, ~key, DESCENDING);
}

// Outputs `first` to `last` of merging all pairs of runs of that length. One place is looked at for
// each output, and none of the choices is a branch: the lanes of a group go different ways.
fn merge_pairs(run: u32, first: u32, last: u32, count: u32) {
    var i = first;
    while i < last {
        let pair = i / (2u * run) * (2u * run);
        let middle = min(pair + run, count);
        let end = min(pair + 2u * run, count);
        let of_a = merged_of_first(i - pair, pair, middle, end);
        var a = pair + of_a;
        var b = middle + i - pair - of_a;
        var id_a = ids[half + min(a, count - 1u)];
        var id_b = ids[half + min(b, count - 1u)];
        var key_a = keys[half + min(a, count - 1u)];
        var key_b = keys[half + min(b, count - 1u)];
        let stop = min(last, end);
        for (; i < stop; i++) {
            let taken = (a < middle) & ((b >= end) | (key_a <= key_b));
            ids[(ROW - half) + i] = select(id_b, id_a, taken);
            keys[(ROW - half) + i] = select(key_b, key_a, taken);
            a += u32(taken);
            b += u32(!taken);
            let next = half + min(select(b, a, taken), count - 1u);
            let id = ids[next];
            let key = keys[next];
            id_a = select(id_a, id, taken);
            key_a = select(key_a, key, taken);
            id_b = select(id, id_b, taken);
            key_b = select(key, key_b, taken);
        }
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups);
    if i >= params.rows {
        return;
    }
    let start = i * params.cols;
    let count = params.cols;
    for (var k = lane; k < count; k += WG) {
        keys[k] = key_of(params.x_offset + start + k);
        ids[k] = k;
    }
    half = 0u;
    workgroupBarrier();
    let first = lane * (ROW / WG);
    let last = min(first + ROW / WG, count);
    for (var run = 1u; run < count; run *= 2u) {
        merge_pairs(run, first, last, count);
        half = ROW - half;
        workgroupBarrier();
    }
    for (var k = lane; k < count; k += WG) {
        y[start + k] = ids[half + k];
    }
}
