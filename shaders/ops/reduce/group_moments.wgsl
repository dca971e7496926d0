// y[n, g] = mean of a group of channels, and 1 / sqrt(variance + eps): moments of parts joined
// (Chan, Golub & LeVeque 1979), row_reduce for each group.
// @import lib/reduce/each_row

struct Params {
    rows: u32, groups: u32, width: u32, channels: u32, parts: u32, part: u32, positions: u32,
    moments_offset: u32, values: f32, eps: f32,
}

@group(0) @binding(0) var<storage, read> moments: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec2<f32>>;

struct Moments { count: f32, mean: f32, squares: f32 }

fn moments_of(row: u32, i: u32) -> Moments {
    let part = i / params.width;
    let channel = (row % params.groups) * params.width + i % params.width;
    let plane = (row / params.groups) * params.parts + part;
    let found = moments[params.moments_offset / 2u + plane * params.channels + channel];
    let count = min(params.part, params.positions - part * params.part);
    return Moments(f32(count), found.x, found.y);
}

fn compute_row(row: u32, lane: u32, width: u32) {
    let count = params.parts * params.width;
    var sum = 0.0;
    for (var i = lane; i < count; i += width) {
        let part = moments_of(row, i);
        sum += part.count * part.mean;
    }
    let mean = row_reduce_sum(sum, lane) / params.values;
    var squares = 0.0;
    for (var i = lane; i < count; i += width) {
        let part = moments_of(row, i);
        let between = part.mean - mean;
        squares += part.squares + part.count * between * between;
    }
    let variance = row_reduce_sum(squares, lane) / params.values;
    if lane == 0u {
        y[row] = vec2<f32>(mean, 1.0 / sqrt(variance + params.eps));
    }
}
