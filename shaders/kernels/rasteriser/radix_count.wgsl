// As radix_count.wgsl, but a thread a chunk, with counters of its own: for devices whose threads run
// one after another, where atomics and workgroup memory cost more than they save.
// @import lib/sort/radix
// @import lib/index/grid

const WG: u32 = 8u;

struct Params { rows: u32, cols: u32, chunks: u32, chunk: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

var<private> counts: array<u32, BINS>;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.rows * params.chunks {
        return;
    }
    let row = i / params.chunks;
    let chunk = i % params.chunks;
    let start = params.x_offset / select(1u, 2u, INPUT == PAIRS) + row * params.cols;
    let end = min((chunk + 1u) * params.chunk, params.cols);
    for (var d = 0u; d < BINS; d++) {
        counts[d] = 0u;
    }
    for (var k = chunk * params.chunk; k < end; k++) {
        counts[digit_of(key_at(start + k))] += 1u;
    }
    for (var d = 0u; d < BINS; d++) {
        y[(row * BINS + d) * params.chunks + chunk] = i32(counts[d]);
    }
}
