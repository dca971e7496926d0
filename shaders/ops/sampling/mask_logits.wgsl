// y = x where the mask has the column's bit, minus infinity elsewhere; values as bits, which no compiler
// may take for numbers that are never infinite.
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, cols: u32, words: u32, x_offset: u32, mask_offset: u32 }

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> mask: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let row = i / params.cols;
    let col = i - row * params.cols;
    let word = mask[params.mask_offset + row * params.words + (col >> 5u)];
    let there = ((word >> (col & 31u)) & 1u) == 1u;
    y[i] = select(0xff800000u, x[params.x_offset + i], there);
}
