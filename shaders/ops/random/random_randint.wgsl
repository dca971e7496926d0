// y = random integers from a low end, as many as `range`, of which 0 stands for 2³².
// @import formats/store/i32 as y
// @import lib/index/grid
// @import lib/random/words

const WG: u32 = 64u;
alias Value = i32;

struct Params { size: u32, key_offset: u32, low: u32, range: u32 }

@group(0) @binding(0) var<storage, read> key: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

// The high word of a product of two.
fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}

fn integer(i: u32) -> Value {
    let words = vec2<u32>(key[params.key_offset], key[params.key_offset + 1u]);
    let bits = random_word(words, params.size, min(i, params.size - 1u));
    let place = select(high_product(bits, params.range), bits, params.range == 0u);
    return bitcast<Value>(params.low + place);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_store4(i, vec4<Value>(integer(i), integer(i + 1u), integer(i + 2u), integer(i + 3u)));
    }
}
