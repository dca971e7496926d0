// Sums of the products of 32 weights in bytes and 32 values in f16, of two rows at a time: a pair of f16 has
// a weight of each, so nothing is left to add up across it. 16 are summed one after the other in f16, all 32
// scaled in f32. The importing file has `weights`, and SOURCES rows.
// @import lib/blocks/group

const ZERO: f32 = 0.0;           // quant that is 0, where all groups have the same

fn buf_add(rows: array<Group, SOURCES>, x: F16Column, c: u32, sums: ptr<function, array<f32, SUMS>>) {
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        if r % 2u == 0u {
            let w_r = rows[r];
            let v_r = rows[min(r + 1u, SOURCES - 1u)];  // a row without a neighbour is its own
            let low_r = buf_half(w_r.low, v_r.low, x, 0u);
            let high_r = buf_half(w_r.high, v_r.high, x, 4u);
            (*sums)[r * COLS + c] += buf_scaled(w_r, x, low_r.x, high_r.x);
            if r + 1u < SOURCES {
                (*sums)[min(r + 1u, SOURCES - 1u) * COLS + c] += buf_scaled(v_r, x, low_r.y, high_r.y);
            }
        }
    }
}

fn buf_scaled(w: Group, x: F16Column, low: f16, high: f16) -> f32 {
    if weights_TWO_SCALES {
        let both = vec2<f32>(f32(low), f32(high));
        let halves = vec2<f32>(x.first, x.sum - x.first);
        if ZERO > 0.0 {
            return dot(both * x.scale - ZERO * halves, w.scale);
        }
        return dot(both, w.scale * x.scale) - dot(w.minimum, halves);
    }
    let all = low + high;
    if ZERO > 0.0 {
        return (f32(all) * x.scale - ZERO * x.sum) * w.scale.x;
    }
    return f32(all) * (w.scale.x * x.scale) - w.minimum.x * x.sum;
}

// Sums of 16 of two rows, with values from the `first` vector on. Sums of quants without a sign grow with each
// product, and what is rounded off them, so these are in two chains of eight.
fn buf_half(w: vec4<u32>, v: vec4<u32>, x: F16Column, first: u32) -> vec2<f16> {
    var sum = buf_four(w.x, v.x, x.values[first], vec2<f16>());
    sum = buf_four(w.y, v.y, x.values[first + 1u], sum);
    var more = select(vec2<f16>(), sum, weights_PAIRS == 0u);
    more = buf_four(w.z, v.z, x.values[first + 2u], more);
    more = buf_four(w.w, v.w, x.values[first + 3u], more);
    return select(sum + more, more, weights_PAIRS == 0u);
}

fn buf_four(quants: u32, others: u32, x: vec4<f16>, before: vec2<f16>) -> vec2<f16> {
    let w = buf_bytes(quants);
    let v = buf_bytes(others);
    var sum = fma(vec2<f16>(w.x, v.x), x.xx, before);
    sum = fma(vec2<f16>(w.y, v.y), x.yy, sum);
    sum = fma(vec2<f16>(w.z, v.z), x.zz, sum);
    return fma(vec2<f16>(w.w, v.w), x.ww, sum);
}

fn buf_bytes(quants: u32) -> vec4<f16> {
    if weights_PAIRS == 0u {
        return vec4<f16>(unpack4xI8(quants));
    }
    return vec4<f16>(unpack4xU8(quants));
}
