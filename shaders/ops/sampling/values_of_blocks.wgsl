// y[row, j, :] = the block of x[row] whose number is blocks[row, j]: a thread a block.
// @import formats/load/f32 as x
// @import lib/index/grid

const WG: u32 = 64u;
alias Value = f32;

struct Params {
    rows: u32, cols: u32, blocks_each: u32, length: u32, x_offset: u32, blocks_offset: u32,
    lowest: u32,
}

@group(0) @binding(0) var<storage, read> blocks: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<Value>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.rows * params.blocks_each {
        return;
    }
    let row = params.x_offset + i / params.blocks_each * params.cols;
    let first = u32(blocks[params.blocks_offset + i]) * params.length;
    for (var k = 0u; k < params.length; k++) {
        var value = bitcast<Value>(params.lowest);
        if first + k < params.cols {
            value = Value(x_load(row + first + k));
        }
        y[i * params.length + k] = value;
    }
}
