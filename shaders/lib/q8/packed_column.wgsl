// A group of 32 values in eight bits, as q8_activations makes it: three vectors of words. Every
// lane loads what it needs.
// @import lib/q8/column

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

alias buf_Column = Column;

fn buf_column(group: u32, lane: u32) -> Column {
    let tail = bitcast<vec4<f32>>(buf[group * 3u + 2u]);
    return Column(
        factors(buf[group * 3u]), factors(buf[group * 3u + 1u]), tail.x, tail.y, tail.z, tail.w,
    );
}

// Where a vector of a row's first group lies, and what lies there in a later one.
fn buf_vector(first: u32, i: u32) -> u32 {
    return first * 3u + i;
}

fn buf_at(vector: u32, group: u32) -> vec4<u32> {
    return buf[vector + group * 3u];
}
