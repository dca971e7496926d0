// Rows of x as they are, 32 values at a time; behind those of a row that lacks the factor of a norm lie
// its squares.
// @import lib/q8/normed
// @import lib/linear/squares

@group(0) @binding(0) var<storage, read> buf: array<vec4<f32>>;

fn buf_start(col: u32) -> u32 {
    let squares = select(0u, square_vec4s(params.groups * 32u), NORMED);
    return params.x_offset / 4u + col * (params.groups * 8u + squares);
}

fn buf_values(col: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = buf_start(col) + group * 8u;
    return array<vec4<f32>, 8>(
        buf[at], buf[at + 1u], buf[at + 2u], buf[at + 3u],
        buf[at + 4u], buf[at + 5u], buf[at + 6u], buf[at + 7u],
    );
}

// A share of the squares of a row: those of all its groups are all of them.
fn buf_squares(col: u32, group: u32) -> f32 {
    if group >= square_vec4s(params.groups * 32u) {
        return 0.0;
    }
    return dot(buf[buf_start(col) + params.groups * 8u + group], vec4<f32>(1.0));
}
