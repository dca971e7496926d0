// Which work group makes what: a tile is an expert and some of the pairs that chose it, as
// expert_tiles.wgsl lists them. Groups with the same rows stand beside each other, since they read the
// same weights.

@group(0) @binding(0) var<storage, read> buf: array<i32>;

fn buf_task(index: u32) -> vec2<u32> {
    return vec2<u32>(index % params.tiles, index / params.tiles);
}

fn buf_expert(tile: u32) -> u32 {
    return u32(buf[params.ids_offset + tile * params.ids_strides.z]);
}

// The largest number where the tile has fewer pairs.
fn buf_pair(tile: u32, column: u32) -> u32 {
    return u32(buf[params.ids_offset + tile * params.ids_strides.z + 1u + column]);
}
