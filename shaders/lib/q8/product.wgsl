// Sum of the products of 32 weights and 32 values of a column. The importing file has `weights`.
// @import lib/q8/packed_sums as sums
// @import lib/q8/column
// @import lib/blocks/group

fn product(w: Group, x: Column) -> f32 {
    let low = sum16(w.low, x.low, weights_PAIRS);
    let high = sum16(w.high, x.high, weights_PAIRS);
    if weights_TWO_SCALES {
        let halves = vec2<f32>(x.first, x.sum - x.first);
        return dot(vec2<f32>(f32(low), f32(high)), w.scale) * x.scale - dot(w.minimum, halves);
    }
    return w.scale.x * (f32(low + high) * x.scale) - w.minimum.x * x.sum;
}
