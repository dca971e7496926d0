// Which work group makes what: each pair of a token and an expert chosen for it is a tile of its own.
// Groups with neighbouring rows of an expert stand beside each other, as do their rows in memory.

@group(0) @binding(0) var<storage, read> buf: array<i32>;

// Tile and rows, of which a work group has one.
fn buf_task(index: u32) -> vec2<u32> {
    return vec2<u32>(index / params.row_groups, index % params.row_groups);
}

fn buf_expert(tile: u32) -> u32 {
    let place = vec2<u32>(tile / params.used, tile % params.used) * params.ids_strides.zw;
    return u32(buf[params.ids_offset + place.x + place.y]);
}

fn buf_pair(tile: u32, column: u32) -> u32 {
    return tile;
}
