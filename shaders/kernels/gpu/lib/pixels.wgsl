// The input patches of a convolution's pixels, as columns of a product: of each tap, 32 channels at
// a time. The importing file has `params`, sizes of its tile, what `weights` and `x` are read with,
// and a Slab of both; SHARES threads bring the channels of a pixel.

// Of the pixels whose channels a thread brings: where the first tap falls, before the border too, and
// where its channels lie, in vectors. What is before the first value wraps around.
struct Pixels {
    places: array<vec3<u32>, X_ITEMS>,
    origins: array<u32, X_ITEMS>,
}
// Where channels of a tap lie for each of these pixels, and whether they are of x.
struct Seen { starts: array<u32, X_ITEMS>, inside: array<bool, X_ITEMS> }

fn behind(tap: vec3<u32>) -> vec3<u32> {
    if tap.z + 1u < params.kernel.w {
        return vec3<u32>(tap.xy, tap.z + 1u);
    }
    if tap.y + 1u < params.kernel.z {
        return vec3<u32>(tap.x, tap.y + 1u, 0u);
    }
    return vec3<u32>(tap.x + 1u, 0u, 0u);
}

fn steps() -> vec3<u32> {
    return vec3<u32>(params.x_depth, params.x_height, params.x_width) / 4u;
}

fn pixels_of(first_col: u32, lane: u32) -> Pixels {
    var pixels: Pixels;
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        // Surplus pixels repeat the last one, and are not stored; surplus threads put nothing.
        let pixel_j = min(first_col + (lane + j * WG) / SHARES, params.n - 1u);
        let line_j = pixel_j / params.out.w;
        let plane_j = line_j / params.out.z;
        let at_j = vec3<u32>(plane_j % params.out.y, line_j % params.out.z, pixel_j % params.out.w);
        pixels.places[j] = at_j * params.step.yzw - params.before.yzw;
        let way_j = pixels.places[j] * steps();
        pixels.origins[j] = first_vector(lane) + plane_j / params.out.y * (params.x_batch / 4u)
            + way_j.x + way_j.y + way_j.z;
    }
    return pixels;
}

fn first_vector(lane: u32) -> u32 {
    return params.x_offset / 4u + lane % SHARES;
}

fn seen_by(pixels: Pixels, tap: vec3<u32>, lane: u32) -> Seen {
    var seen: Seen;
    let reach = tap * params.dilation.yzw;
    let way = reach * steps();
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        seen.inside[j] = all(pixels.places[j] + reach < params.size.yzw);
        let start_j = pixels.origins[j] + way.x + way.y + way.z;
        seen.starts[j] = select(first_vector(lane), start_j, seen.inside[j]);
    }
    return seen;
}

// What a thread brings of a slab: group `g` of rows, group `of_tap` of the channels of a tap.
fn channels(starts: array<u32, W_ITEMS>, seen: Seen, g: u32, of_tap: u32) -> Slab {
    var slab: Slab;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        var values_j: array<vec4<f32>, 8>;
        weights_load32(starts[j] + g, &values_j);
        slab.w[j] = values_j;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let values_j = x_load4(seen.starts[j] + of_tap * 8u);
        slab.x[j] = select(vec4<f32>(), values_j, seen.inside[j]);
    }
    return slab;
}
