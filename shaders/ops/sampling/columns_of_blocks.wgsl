// y[row, i] = column of x[row] that a place in its chosen blocks is; see values_of_blocks.wgsl.
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, k: u32, blocks_each: u32, length: u32, places_offset: u32, blocks_offset: u32,
}

@group(0) @binding(0) var<storage, read> places: array<i32>;
@group(0) @binding(1) var<storage, read> blocks: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let place = u32(places[params.places_offset + i]);
    let row = params.blocks_offset + i / params.k * params.blocks_each;
    let block = u32(blocks[row + place / params.length]);
    y[i] = i32(block * params.length + place % params.length);
}
