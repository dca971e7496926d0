// y = random words, of which narrower types have several values each.
// @import lib/index/grid
// @import lib/random/words

const WG: u32 = 64u;

struct Params { words: u32, key_offset: u32 }

@group(0) @binding(0) var<storage, read> key: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i < params.words {
        let words = vec2<u32>(key[params.key_offset], key[params.key_offset + 1u]);
        y[i] = random_word(words, params.words, i);
    }
}
