// Index of a thread in a grid of one dimension that was spread over x and y.

fn grid_index(id: vec3<u32>, groups: vec3<u32>, width: u32) -> u32 {
    return id.y * groups.x * width + id.x;
}

fn group_index(id: vec3<u32>, groups: vec3<u32>) -> u32 {
    return id.y * groups.x + id.x;
}
