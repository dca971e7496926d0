// y[row, i] = sum of x[row, 0 … i]: one work group a block of a row. What comes before a block is in
// `carry`, the running sums of whole blocks. Values go through workgroup memory, so that neighbouring
// threads read and write neighbours.
// @import formats/load/f32 as x
// @import formats/load/f32 as carry
// @import lib/index/grid

const WG: u32 = 64u;
const BLOCK: u32 = 1024u;
const CARRIED: bool = false;
alias Value = f32;

struct Params { rows: u32, cols: u32, blocks: u32, x_offset: u32, carry_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<Value>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> tile: array<Value, BLOCK>;
var<workgroup> ends: array<Value, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups);
    if i >= params.rows * params.blocks {
        return;
    }
    let block = i % params.blocks;
    let start = (i / params.blocks) * params.cols + block * BLOCK;
    let count = min(BLOCK, params.cols - block * BLOCK);
    for (var k = lane; k < count; k += WG) {
        tile[k] = Value(x_load(params.x_offset + start + k));
    }
    workgroupBarrier();
    let first = lane * (BLOCK / WG);
    let last = min(first + BLOCK / WG, count);
    var sum = Value(0);
    for (var k = first; k < last; k++) {
        sum += tile[k];
    }
    ends[lane] = sum;
    workgroupBarrier();
    var before = Value(0);
    if CARRIED {
        if block > 0u {
            before = Value(carry_load(params.carry_offset + i - 1u));
        }
    }
    for (var k = 0u; k < lane; k++) {
        before += ends[k];
    }
    for (var k = first; k < last; k++) {
        before += tile[k];
        tile[k] = before;
    }
    workgroupBarrier();
    for (var k = lane; k < count; k += WG) {
        y[start + k] = tile[k];
    }
}
