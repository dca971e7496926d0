// y = codes of values, nearest to (w - bias) / scale, packed from the low bits on: 32 a thread, which
// are BITS words.
// @import formats/load/f32 as w
// @import lib/numeric/exact_ratio
// @import lib/index/grid

const WG: u32 = 64u;
const BITS: u32 = 4u;

struct Params { count: u32, group_size: u32, bins: u32, w_offset: u32, scales_offset: u32 }

@group(0) @binding(0) var<storage, read> scales: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.count {
        return;
    }
    let of_group = scales[params.scales_offset / 2u + i * 32u / params.group_size];
    var word = 0u;
    var filled = 0u;
    var at = i * BITS;
    for (var k = 0u; k < 32u; k++) {
        let value = w_load(params.w_offset + i * 32u + k);
        let nearest = nearest_code(value - of_group.y, of_group.x);
        let code = u32(clamp(nearest, 0.0, f32(params.bins)));
        word |= code << filled;
        filled += BITS;
        if filled >= 32u {
            y[at] = word;
            at += 1u;
            filled -= 32u;
            word = select(code >> (BITS - filled), 0u, filled == 0u);
        }
    }
}

// x / scale rounded to a whole number: between two, where values of few bits often are, one unit decides.
fn nearest_code(x: f32, scale: f32) -> f32 {
    let quotient = x / scale;
    let beside = abs(quotient - floor(quotient) - 0.5);
    if beside < 1e-3 {
        return round(exact_ratio(x, scale));
    }
    return round(quotient);
}
