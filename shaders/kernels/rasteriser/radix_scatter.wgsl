// As radix_scatter.wgsl, but a thread a chunk, which takes its keys one after another; see
// radix_count.wgsl next to it.
// @import lib/sort/radix_move

const WG: u32 = 8u;

var<private> places: array<u32, BINS>;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.rows * params.chunks {
        return;
    }
    let chunk = chunk_of(i);
    for (var d = 0u; d < BINS; d++) {
        places[d] = first_place(chunk, d);
    }
    for (var column = chunk.first; column < chunk.end; column++) {
        let at = input_index(chunk, column);
        let key = key_at(at);
        let digit = digit_of(key);
        let place = places[digit];
        places[digit] = place + 1u;
        put(place, key, id_at(at, column, key));
    }
}
