// y[row, digit, chunk] = how many keys of one chunk of a row have that digit: a work group a chunk.
// @import lib/sort/radix
// @import lib/index/grid

const WG: u32 = 256u;

struct Params { rows: u32, cols: u32, chunks: u32, chunk: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> counts: array<atomic<u32>, BINS>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups);
    if i >= params.rows * params.chunks {
        return;
    }
    let row = i / params.chunks;
    let chunk = i % params.chunks;
    let start = params.x_offset / select(1u, 2u, INPUT == PAIRS) + row * params.cols;
    let end = min((chunk + 1u) * params.chunk, params.cols);
    for (var d = lane; d < BINS; d += WG) {
        atomicStore(&counts[d], 0u);
    }
    workgroupBarrier();
    for (var k = chunk * params.chunk + lane; k < end; k += WG) {
        atomicAdd(&counts[digit_of(key_at(start + k))], 1u);
    }
    workgroupBarrier();
    for (var d = lane; d < BINS; d += WG) {
        y[(row * BINS + d) * params.chunks + chunk] = i32(atomicLoad(&counts[d]));
    }
}
