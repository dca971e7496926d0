// A group of 32 values in eight bits, as q8_activations makes it: three vectors of words. Every lane
// loads what it asks for.
// @import lib/q8/column

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

alias buf_Column = Column;

fn buf_column(group: u32, lane: u32) -> Column {
    let tail = bitcast<vec4<f32>>(buf[group * 3u + 2u]);
    return Column(
        factors(buf[group * 3u]), factors(buf[group * 3u + 1u]), tail.x, tail.y, tail.z, tail.w,
    );
}
