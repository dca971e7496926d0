// A group of 32 values in sixteen bits, its five vectors of words in a plane each: neighbouring lanes read
// what lies side by side.

struct Q16Column {
    upper: array<vec4<u32>, 2>,
    lower: array<vec4<u32>, 2>,
    scale: f32,
    sum: f32,
    first: f32,
    squares: f32,
}

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

alias buf_Column = Q16Column;

fn buf_column(group: u32, lane: u32) -> Q16Column {
    let plane = params.n * params.groups;
    let tail = bitcast<vec4<f32>>(buf[4u * plane + group]);
    return Q16Column(
        array<vec4<u32>, 2>(buf[group], buf[plane + group]),
        array<vec4<u32>, 2>(buf[2u * plane + group], buf[3u * plane + group]),
        tail.x, tail.y, tail.z, tail.w,
    );
}
