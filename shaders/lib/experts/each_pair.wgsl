// Which work group makes what: each pair of a token and an expert chosen for it is a tile of its own.
// Groups with neighbouring rows of an expert stand beside each other, as do their rows in memory.
// @import lib/experts/expert_of

// Tile and rows, of which a work group has one.
fn buf_task(index: u32) -> vec2<u32> {
    return vec2<u32>(index / params.row_groups, index % params.row_groups);
}

fn buf_expert(tile: u32) -> u32 {
    return expert_of(tile);
}

fn buf_pair(tile: u32, column: u32) -> u32 {
    return tile;
}
