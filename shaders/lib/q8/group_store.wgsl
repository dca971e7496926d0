// Where a group in eight bits goes, behind the group before it. The importing file has `y`, in words.

fn put_group(group: u32, words: array<vec4<u32>, 3>) {
    for (var i = 0u; i < 3u; i++) {
        for (var k = 0u; k < 4u; k++) {
            y[group * 12u + i * 4u + k] = words[i][k];
        }
    }
}
