// y[row, :] = columns of the row in the order of their values, for rows of up to 1,024: a thread a row,
// by a radix sort of its own. For devices whose threads run one after another.
//
// Once the first digit of ten bits is sorted by, its bits of a key make room for the column. Words go
// from `x` to `words`, to `y`, to `words` and back to `y`.
// @import formats/load/f32 as x
// @import lib/index/grid
// @import lib/sort/order

const WG: u32 = 8u;
const INTEGER: bool = false;
const DESCENDING: bool = false;

struct Params { rows: u32, cols: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

// Counters of the four digits: bits 0–9, 10–17, 18–24 and 25–31.
const SECOND: u32 = 1024u;
const THIRD: u32 = 1280u;
const FOURTH: u32 = 1408u;
const COUNTERS: u32 = 1536u;
const COLUMN: u32 = 1023u;

var<private> places: array<u32, COUNTERS>;
var<private> words: array<u32, 1024>;

fn key_of(at: u32) -> u32 {
    var key = key_of_f32(f32(x_load(at)));
    if INTEGER {
        key = key_of_integer(u32(x_load(at)));
    }
    return select(key, ~key, DESCENDING);
}

fn second(word: u32) -> u32 {
    return SECOND + ((word >> 10u) & 255u);
}

fn third(word: u32) -> u32 {
    return THIRD + ((word >> 18u) & 127u);
}

fn fourth(word: u32) -> u32 {
    return FOURTH + (word >> 25u);
}

fn next_place(counter: u32) -> u32 {
    let place = places[counter];
    places[counter] = place + 1u;
    return place;
}

// Make the counts of one digit the first places of its values.
fn count_up(first: u32, last: u32) {
    var before = 0u;
    for (var d = first; d < last; d++) {
        let count = places[d];
        places[d] = before;
        before += count;
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let row = grid_index(id, groups, WG);
    if row >= params.rows {
        return;
    }
    let start = row * params.cols;
    let source = params.x_offset + start;
    for (var d = 0u; d < COUNTERS; d++) {
        places[d] = 0u;
    }
    for (var i = 0u; i < params.cols; i++) {
        let key = key_of(source + i);
        places[key & COLUMN] += 1u;
        places[second(key)] += 1u;
        places[third(key)] += 1u;
        places[fourth(key)] += 1u;
    }
    count_up(0u, SECOND);
    count_up(SECOND, THIRD);
    count_up(THIRD, FOURTH);
    count_up(FOURTH, COUNTERS);
    for (var i = 0u; i < params.cols; i++) {
        let key = key_of(source + i);
        words[next_place(key & COLUMN)] = (key & ~COLUMN) | i;
    }
    for (var i = 0u; i < params.cols; i++) {
        let word = words[i];
        y[start + next_place(second(word))] = word;
    }
    for (var i = 0u; i < params.cols; i++) {
        let word = y[start + i];
        words[next_place(third(word))] = word;
    }
    for (var i = 0u; i < params.cols; i++) {
        let word = words[i];
        y[start + next_place(fourth(word))] = word & COLUMN;
    }
}
