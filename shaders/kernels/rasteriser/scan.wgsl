// As scan.wgsl, but a thread a block, or with WHOLE_ROWS a row, which goes through it value by value: for devices whose threads
// run one after another.
// @import formats/load/f32 as x
// @import formats/load/f32 as carry
// @import lib/reduce_op/sum as reduce_op
// @import lib/index/grid

const WG: u32 = 8u;
const BLOCK: u32 = 1024u;
const CARRIED: bool = false;
const WHOLE_ROWS: bool = false;
const EXCLUSIVE: bool = false;
const FIRST: reduce_op_Bits = reduce_op_Bits();

struct Params { rows: u32, cols: u32, blocks: u32, x_offset: u32, carry_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<reduce_op_Bits>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    let parts = select(params.blocks, 1u, WHOLE_ROWS);
    if i >= params.rows * parts {
        return;
    }
    let block = i % parts;
    let start = (i / parts) * params.cols;
    var total = reduce_op_none();
    if CARRIED {
        if block > 0u {
            total = reduce_op_take(reduce_op_Value(carry_load(params.carry_offset + i - 1u)), 0.0);
        }
    }
    let end = start + select(min((block + 1u) * BLOCK, params.cols), params.cols, WHOLE_ROWS);
    for (var k = start + block * BLOCK; k < end; k++) {
        if EXCLUSIVE {
            y[k] = select(reduce_op_bits(total, 1.0), FIRST, k == start);
        }
        let value = reduce_op_Value(x_load(params.x_offset + k));
        total = reduce_op_join(total, reduce_op_take(value, 0.0));
        if !EXCLUSIVE {
            y[k] = reduce_op_bits(total, 1.0);
        }
    }
}
