// Ids, of which some stand for what a place of `kept` holds: see recall.wgsl.

const PLACES: u32 = 1u;

@group(0) @binding(0) var<storage, read> buf: array<i32>;
@group(0) @binding(1) var<storage, read> buf_kept: array<i32>;

fn buf_load(i: u32) -> i32 {
    let place = u32(-2 - buf[i]);
    if place < PLACES {
        return buf_kept[place];
    }
    return buf[i];
}
