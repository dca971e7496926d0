// Index of a thread in a grid of one dimension that was spread over x and y.

fn grid_index(id: vec3<u32>, groups: vec3<u32>, width: u32) -> u32 {
    return id.y * groups.x * width + id.x;
}

// The same where a thread takes several items: those of a thread lie `width` apart, those of a group together.
fn item_index(id: vec3<u32>, groups: vec3<u32>, width: u32, items: u32, item: u32) -> u32 {
    let thread = grid_index(id, groups, width);
    return (thread / width * items + item) * width + thread % width;
}

fn group_index(id: vec3<u32>, groups: vec3<u32>) -> u32 {
    return id.y * groups.x + id.x;
}
