// Which groups of k a work group sums: all of them, or with SPLIT those of one part, whose sums lie behind
// those of the parts before. The importing file has Params. Few rows are split, so z counts parts then.

const SPLIT: bool = false;

fn row_tile(group: vec3<u32>) -> u32 {
    return group.y + select(group.z * 65535u, 0u, SPLIT);
}

fn first_group(group: vec3<u32>) -> u32 {
    return select(0u, group.z * params.part_groups, SPLIT);
}

fn end_group(first: u32) -> u32 {
    if SPLIT {
        return min(first + params.part_groups, params.groups);
    }
    return params.groups;
}

fn first_result(group: vec3<u32>) -> u32 {
    return select(0u, group.z * params.n * params.m, SPLIT);
}
