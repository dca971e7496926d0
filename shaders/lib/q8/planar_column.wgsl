// A group of 32 values in eight bits, its three vectors of words in a plane each: neighbouring lanes
// read what lies side by side.
// @import lib/q8/column

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

alias buf_Column = Column;

fn buf_column(group: u32, lane: u32) -> Column {
    let plane = params.n * params.groups;
    let tail = bitcast<vec4<f32>>(buf[2u * plane + group]);
    return Column(
        factors(buf[group]), factors(buf[plane + group]), tail.x, tail.y, tail.z, tail.w,
    );
}

// Where a vector of a row's first group lies, and what lies there in a later one.
fn buf_vector(first: u32, i: u32) -> u32 {
    return i * params.n * params.groups + first;
}

fn buf_at(vector: u32, group: u32) -> vec4<u32> {
    return buf[vector + group];
}
