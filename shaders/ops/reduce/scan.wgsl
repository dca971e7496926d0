// y[row, i] = x[row, 0 … i], or 0 … i - 1, folded: one work group a block of a row, or with WHOLE_ROWS
// all blocks of one. What comes before a block is in `carry`, whole blocks folded. Values go through workgroup memory, so that neighbouring
// threads read and write neighbours.
// @import formats/load/f32 as x
// @import formats/load/f32 as carry
// @import lib/reduce_op/sum as reduce_op
// @import lib/index/grid

const WG: u32 = 64u;
const BLOCK: u32 = 1024u;
const CARRIED: bool = false;
// A work group takes the blocks of a row one after the other.
const WHOLE_ROWS: bool = false;
// Results leave their own value out; the first of a row is then FIRST.
const EXCLUSIVE: bool = false;
const FIRST: reduce_op_Bits = reduce_op_Bits();

struct Params { rows: u32, cols: u32, blocks: u32, x_offset: u32, carry_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<reduce_op_Bits>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> tile: array<reduce_op_Total, BLOCK>;
var<workgroup> ends: array<reduce_op_Total, WG>;

// Folds a block of a row that begins with `before`, and gives what comes before the next one.
fn fold_block(row: u32, block: u32, lane: u32, carried: reduce_op_Total) -> reduce_op_Total {
    let start = row * params.cols + block * BLOCK;
    let count = min(BLOCK, params.cols - block * BLOCK);
    for (var k = lane; k < count; k += WG) {
        tile[k] = reduce_op_take(reduce_op_Value(x_load(params.x_offset + start + k)), 0.0);
    }
    workgroupBarrier();
    let first = lane * (BLOCK / WG);
    let last = min(first + BLOCK / WG, count);
    var own = reduce_op_none();
    for (var k = first; k < last; k++) {
        own = reduce_op_join(own, tile[k]);
    }
    ends[lane] = own;
    workgroupBarrier();
    var before = carried;
    for (var k = 0u; k < lane; k++) {
        before = reduce_op_join(before, ends[k]);
    }
    var behind = before;
    if WHOLE_ROWS {
        for (var k = lane; k < WG; k++) {
            behind = reduce_op_join(behind, ends[k]);
        }
    }
    for (var k = first; k < last; k++) {
        let after = reduce_op_join(before, tile[k]);
        tile[k] = after;
        if EXCLUSIVE {
            tile[k] = before;
        }
        before = after;
    }
    workgroupBarrier();
    for (var k = lane; k < count; k += WG) {
        y[start + k] = reduce_op_bits(tile[k], 1.0);
        if EXCLUSIVE && block == 0u && k == 0u {
            y[start] = FIRST;
        }
    }
    return behind;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups);
    var before = reduce_op_none();
    if WHOLE_ROWS {
        if i >= params.rows {
            return;
        }
        for (var block = 0u; block < params.blocks; block++) {
            before = fold_block(i, block, lane, before);
            workgroupBarrier();
        }
        return;
    }
    if i >= params.rows * params.blocks {
        return;
    }
    let block = i % params.blocks;
    if CARRIED {
        if block > 0u {
            before = reduce_op_take(reduce_op_Value(carry_load(params.carry_offset + i - 1u)), 0.0);
        }
    }
    _ = fold_block(i / params.blocks, block, lane, before);
}
