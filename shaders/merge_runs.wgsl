// y = the sorted runs of each row of (key, id) merged two and two: a thread a chunk of the result. The
// last merge leaves the ids alone.
// @import lib/grid
// @import lib/merge

const WG: u32 = 64u;
const CHUNK: u32 = 16u;
const IDS_ALONE: bool = false;

struct Params { rows: u32, cols: u32, chunks: u32, run: u32, pairs_offset: u32 }

@group(0) @binding(0) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

fn key_at(i: u32) -> u32 {
    return pairs[i].x;
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let thread = grid_index(id, groups, WG);
    if thread >= params.rows * params.chunks {
        return;
    }
    let row = (thread / params.chunks) * params.cols;
    let first = (thread % params.chunks) * CHUNK;
    let start = params.pairs_offset / 2u + row;
    // A chunk lies within one pair of runs: these are multiples of it.
    let pair = first / (2u * params.run) * (2u * params.run);
    let middle = min(pair + params.run, params.cols);
    let end = min(pair + 2u * params.run, params.cols);
    let of_a = merged_of_first(first - pair, start + pair, start + middle, start + end);
    var a = start + pair + of_a;
    var b = start + middle + first - pair - of_a;
    let last = start + params.cols - 1u;
    var pair_a = pairs[min(a, last)];
    var pair_b = pairs[min(b, last)];
    for (var i = first; i < min(first + CHUNK, params.cols); i++) {
        let taken = (a < start + middle) & ((b >= start + end) | (pair_a.x <= pair_b.x));
        let value = select(pair_b, pair_a, taken);
        a += u32(taken);
        b += u32(!taken);
        let next = pairs[min(select(b, a, taken), last)];
        pair_a = select(pair_a, next, taken);
        pair_b = select(next, pair_b, taken);
        if IDS_ALONE {
            y[row + i] = value.y;
        } else {
            y[2u * (row + i)] = value.x;
            y[2u * (row + i) + 1u] = value.y;
        }
    }
}
