// Sum of the products of 32 weights in bytes and 32 values in sixteen bits: those with upper bytes are
// 256 times as much, so one integer has the sum, and scaling is as much work as for eight bits. It is at
// most 32 · 128 · 32639, below 2^27. The importing file has `weights`.
// @import lib/blocks/group

const ZERO: f32 = 0.0;           // quant that is 0, where all groups have the same

fn buf_product(w: Group, x: Q16Column) -> f32 {
    if weights_TWO_SCALES {
        let low = (buf_dots(w.low, x.upper[0], 0) << 8u);
        let high = (buf_dots(w.high, x.upper[1], 0) << 8u);
        let both = vec2<f32>(
            f32(buf_dots(w.low, x.lower[0], low)), f32(buf_dots(w.high, x.lower[1], high)),
        );
        let halves = vec2<f32>(x.first, x.sum - x.first);
        if ZERO > 0.0 {
            return dot(both * x.scale - ZERO * halves, w.scale);
        }
        return dot(both, w.scale) * x.scale - dot(w.minimum, halves);
    }
    let upper = buf_dots(w.high, x.upper[1], buf_dots(w.low, x.upper[0], 0)) << 8u;
    let all = f32(buf_dots(w.high, x.lower[1], buf_dots(w.low, x.lower[0], upper)));
    if ZERO > 0.0 {
        return (all * x.scale - ZERO * x.sum) * w.scale.x;
    }
    return w.scale.x * (all * x.scale) - w.minimum.x * x.sum;
}

// Sum of 16 products of bytes, and what was before.
fn buf_dots(w: vec4<u32>, x: vec4<u32>, before: i32) -> i32 {
    var sum = before;
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        sum += dot4I8Packed(w[k], x[k]);
    }
    return sum;
}

fn buf_add(rows: array<Group, SOURCES>, x: Q16Column, c: u32, sums: ptr<function, array<f32, SUMS>>) {
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        (*sums)[r * COLS + c] += buf_product(rows[r], x);
    }
}
