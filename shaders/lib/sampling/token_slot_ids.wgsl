// Ids, of which some stand for what a slot of `token_slots` holds: see resolve_tokens.wgsl.

const TOKEN_SLOTS: u32 = 1u;

@group(0) @binding(0) var<storage, read> buf: array<i32>;
@group(0) @binding(1) var<storage, read> buf_slots: array<i32>;

fn buf_load(i: u32) -> i32 {
    let slot = u32(-2 - buf[i]);
    if slot < TOKEN_SLOTS {
        return buf_slots[slot];
    }
    return buf[i];
}
