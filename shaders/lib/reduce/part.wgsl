// Where values of a part of an output lie: kept axes say which output, the others are run through.
// @import lib/index/strided

const CENTRED: bool = false;
// The axes that are run through step through storage as one, and so do those that are kept.
const ONE_REDUCED_AXIS: bool = true;
const ONE_KEPT_AXIS: bool = false;

struct Params {
    outputs: u32,
    length: u32,
    part: u32,
    parts: u32,
    x_offset: u32,
    centre_offset: u32,
    divisor: f32,
    kept_shape: vec4<u32>,
    kept_strides: vec4<u32>,
    reduced_shape: vec4<u32>,
    reduced_strides: vec4<u32>,
}

fn start_of(output: u32) -> u32 {
    if ONE_KEPT_AXIS {
        return params.x_offset + output * params.kept_strides.w;
    }
    return params.x_offset + strided(output, params.kept_shape, params.kept_strides);
}

fn end_of(part: u32) -> u32 {
    return min((part + 1u) * params.part, params.length);
}

// Value `i` of the output that starts at `start`.
fn place(start: u32, i: u32) -> u32 {
    if ONE_REDUCED_AXIS {
        return start + i * params.reduced_strides.w;
    }
    return start + strided(i, params.reduced_shape, params.reduced_strides);
}
