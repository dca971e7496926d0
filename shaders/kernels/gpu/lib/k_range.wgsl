// Which groups of k a work group sums: all of them, or with SPLIT those of one part, whose sums lie
// behind those of the parts before. The importing file has Params. Few rows are split, so z counts
// parts then. Functions have a single return: D3D12's compiler refuses barriers that depend on the
// result of a function with several.

const SPLIT: bool = false;

fn row_tile(group: vec3<u32>) -> u32 {
    return group.y + select(group.z * 65535u, 0u, SPLIT);
}

fn first_group(group: vec3<u32>) -> u32 {
    return select(0u, group.z * params.part_groups, SPLIT);
}

fn end_group(first: u32) -> u32 {
    return select(params.groups, min(first + params.part_groups, params.groups), SPLIT);
}

fn first_result(group: vec3<u32>) -> u32 {
    return select(0u, group.z * params.n * params.m, SPLIT);
}
