// Sum of the products of 32 weights in bytes and 32 values in f16, two at a time: 16 are summed one after
// the other in f16, all 32 scaled in f32. The importing file has `weights`.
// @import lib/blocks/group

const ZERO: f32 = 0.0;           // quant that is 0, where all groups have the same

fn buf_product(w: Group, x: F16Column) -> f32 {
    let low = buf_half(w.low, x.values[0], x.values[1], x.values[2], x.values[3]);
    let high = buf_half(w.high, x.values[4], x.values[5], x.values[6], x.values[7]);
    if weights_TWO_SCALES {
        let both = vec2<f32>(f32(low.x + low.y), f32(high.x + high.y));
        let halves = vec2<f32>(x.first, x.sum - x.first);
        if ZERO > 0.0 {
            return dot(both * x.scale - ZERO * halves, w.scale);
        }
        return dot(both, w.scale * x.scale) - dot(w.minimum, halves);
    }
    let all = low + high;
    if ZERO > 0.0 {
        return (f32(all.x + all.y) * x.scale - ZERO * x.sum) * w.scale.x;
    }
    return f32(all.x + all.y) * (w.scale.x * x.scale) - w.minimum.x * x.sum;
}

fn buf_half(
    quants: vec4<u32>, first: vec4<f16>, second: vec4<f16>, third: vec4<f16>, fourth: vec4<f16>,
) -> vec2<f16> {
    var sum = buf_four(quants.x, first, vec2<f16>());
    sum = buf_four(quants.y, second, sum);
    sum = buf_four(quants.z, third, sum);
    return buf_four(quants.w, fourth, sum);
}

fn buf_four(quants: u32, x: vec4<f16>, before: vec2<f16>) -> vec2<f16> {
    let w = buf_bytes(quants);
    return fma(w.zw, x.zw, fma(w.xy, x.xy, before));
}

fn buf_bytes(quants: u32) -> vec4<f16> {
    if weights_PAIRS == 0u {
        return vec4<f16>(unpack4xI8(quants));
    }
    return vec4<f16>(unpack4xU8(quants));
}
