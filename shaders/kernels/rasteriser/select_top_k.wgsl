// As ops/sampling/select_top_k.wgsl, but a thread a row, with counters of its own: for devices whose threads run one
// after another.
// @import lib/index/grid
// @import lib/sort/key_at

const WG: u32 = 8u;

struct Params { rows: u32, cols: u32, k: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

// Digits of 11, 11 and 10 bits, the highest first.
const BINS: u32 = 2048u;

var<private> counts: array<u32, BINS>;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let row = grid_index(id, groups, WG);
    if row >= params.rows {
        return;
    }
    let start = params.x_offset + row * params.cols;
    var bound = 0u;
    var wanted = params.k;
    var above = 0u;   // bits of a key that are bound already
    for (var digit = 0u; digit < 3u; digit++) {
        let shift = 21u - min(11u * digit, 21u);
        for (var d = 0u; d < BINS; d++) {
            counts[d] = 0u;
        }
        for (var i = 0u; i < params.cols; i++) {
            let key = key_at(start + i);
            if ((key ^ bound) & above) == 0u {
                counts[((key & ~above) >> shift)] += 1u;
            }
        }
        var d = ~above >> shift;
        while wanted > counts[d] {
            wanted -= counts[d];
            d -= 1u;
        }
        bound |= d << shift;
        above = ~((1u << shift) - 1u);
    }
    var place = row * params.k;
    for (var i = 0u; i < params.cols; i++) {
        let key = key_at(start + i);
        if key > bound || (key == bound && wanted > 0u) {
            wanted -= u32(key == bound);
            y[place] = i32(i);
            place += 1u;
        }
    }
}
