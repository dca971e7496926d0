// Where a group in eight bits goes, three vectors of words: behind the group before it, or each vector
// into a plane of its own, where neighbouring lanes read what lies side by side. The importing file has
// `y`, in vectors.

const PLANAR: bool = false;

// `groups` is the number of all groups.
fn q8_store(group: u32, groups: u32, words: array<vec4<u32>, 3>) {
    let start = select(group * 3u, group, PLANAR);
    let step = select(1u, groups, PLANAR);
    y[start] = words[0];
    y[start + step] = words[1];
    y[start + 2u * step] = words[2];
}
