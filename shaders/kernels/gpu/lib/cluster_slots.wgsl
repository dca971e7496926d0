// Where the heads of KEYS positions lie in a paged cache, counted in heads. The importing file has KEYS
// and what lib/attention/paged has.

const BLOCK: u32 = 32u;          // positions of a block of the cache
// Number of the last head that 4 GiB have: with it the compiler knows that addresses do not wrap.
const LAST_SLOT: u32 = 0xffffffu;

// Positions outside the range are replaced by its ends, so that nothing is read that was never written.
fn slots_of(sequence: u32, start: u32, range: vec2<u32>, kv_head: u32) -> array<u32, KEYS> {
    let last_slot = min((params.k_rows - 1u) * params.kv_heads + kv_head, LAST_SLOT);
    let row = params.table_offset + sequence * params.table_width;
    let last = range.y - 1u;
    var slots: array<u32, KEYS>;
    // Positions from a multiple of KEYS on share a block where blocks are multiples of that.
    let begin = min(start, last / KEYS * KEYS);
    let begin_row = u32(table_load(row + begin / BLOCK)) * BLOCK + begin % BLOCK;
    let begin_slot = begin_row * params.kv_heads + kv_head;
    let least = begin_slot + (max(begin, range.x) - begin) * params.kv_heads;
    let most = min(begin_slot + (last - begin) * params.kv_heads, last_slot);
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        slots[p] = min(max(begin_slot + p * params.kv_heads, least), most);
        if BLOCK % KEYS != 0u {
            let position_p = clamp(start + p, range.x, last);
            let row_p = u32(table_load(row + position_p / BLOCK)) * BLOCK + position_p % BLOCK;
            slots[p] = min(row_p * params.kv_heads + kv_head, last_slot);
        }
    }
    return slots;
}
