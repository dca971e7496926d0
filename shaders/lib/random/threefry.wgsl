// Threefry-2x32 with 20 rounds (Salmon et al. 2011): two random words of a key and a counter.

fn rotated(word: u32, turn: u32) -> u32 {
    return (word << turn) | (word >> (32u - turn));
}

fn mixed(state: vec2<u32>, turns: vec4<u32>) -> vec2<u32> {
    var s = state;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        s.x += s.y;
        s.y = rotated(s.y, turns[i]) ^ s.x;
    }
    return s;
}

fn threefry(words: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    let key = vec3<u32>(words, words.x ^ words.y ^ 0x1bd11bdau);
    let even = vec4<u32>(13u, 15u, 26u, 6u);
    let odd = vec4<u32>(17u, 29u, 16u, 24u);
    var s = counter + key.xy;
    s = mixed(s, even) + key.yz + vec2<u32>(0u, 1u);
    s = mixed(s, odd) + key.zx + vec2<u32>(0u, 2u);
    s = mixed(s, even) + key.xy + vec2<u32>(0u, 3u);
    s = mixed(s, odd) + key.yz + vec2<u32>(0u, 4u);
    return mixed(s, even) + key.zx + vec2<u32>(0u, 5u);
}
