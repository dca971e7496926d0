// y = the keys of each row in the order of one digit, those of equal digits in the order they had: a
// work group a chunk. In each round a thread brings a key and counts the equal digits before its own.
// @import lib/sort/radix_move

const WG: u32 = 64u;
const NONE: u32 = 0xffffffffu;

var<workgroup> places: array<u32, BINS>;
var<workgroup> digits: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups);
    if i >= params.rows * params.chunks {
        return;
    }
    let chunk = chunk_of(i);
    for (var d = lane; d < BINS; d += WG) {
        places[d] = first_place(chunk, d);
    }
    for (var round = chunk.first; round < chunk.end; round += WG) {
        let column = round + lane;
        let inside = column < chunk.end;
        let at = input_index(chunk, min(column, chunk.end - 1u));
        let key = key_at(at);
        let digit = digit_of(key);
        digits[lane] = select(NONE, digit, inside);
        workgroupBarrier();
        var before = 0u;
        var after = 0u;
        for (var other = 0u; other < WG; other++) {
            let same = u32(digits[other] == digit);
            before += select(0u, same, other < lane);
            after += select(0u, same, other > lane);
        }
        let place = places[digit] + before;
        workgroupBarrier();
        if inside {
            put(place, key, id_at(at, column, key));
            if after == 0u {
                places[digit] = place + 1u;
            }
        }
    }
}
