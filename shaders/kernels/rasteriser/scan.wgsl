// As scan.wgsl, but a thread a block, which goes through it value by value: for devices whose threads
// run one after another.
// @import formats/load/f32 as x
// @import formats/load/f32 as carry
// @import lib/index/grid

const WG: u32 = 8u;
const BLOCK: u32 = 1024u;
const CARRIED: bool = false;
alias Value = f32;

struct Params { rows: u32, cols: u32, blocks: u32, x_offset: u32, carry_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<Value>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.rows * params.blocks {
        return;
    }
    let block = i % params.blocks;
    let start = (i / params.blocks) * params.cols;
    var sum = Value(0);
    if CARRIED {
        if block > 0u {
            sum = Value(carry_load(params.carry_offset + i - 1u));
        }
    }
    let end = start + min((block + 1u) * BLOCK, params.cols);
    for (var k = start + block * BLOCK; k < end; k++) {
        sum += Value(x_load(params.x_offset + k));
        y[k] = sum;
    }
}
