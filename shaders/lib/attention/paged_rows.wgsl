// Rows of a tile over a paged cache, as kernels of tiles take them: see paged, and plain_rows.
// @import formats/load/i32 as positions
// @import formats/load/i32 as sequences
// @import lib/attention/paged

// A dispatch has all tiles.
fn first_group() -> u32 {
    return 0u;
}

// Where a position's key and value begin, in vectors of four.
fn places_of(run: Run, position: u32, kv_head: u32) -> vec2<u32> {
    let slot = cache_row(run.sequence, position) * params.kv_heads + kv_head;
    return slot * vec2<u32>(K_VEC4S, V_VEC4S);
}

fn row_place(row: u32, kv_head: u32, split: u32) -> u32 {
    return place_of(row, kv_head, split);
}

fn is_shown(row: u32, kv_head: u32, position: u32) -> bool {
    return true;
}
