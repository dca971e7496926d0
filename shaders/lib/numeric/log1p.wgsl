// log(1 + x), which does not lose small x beside 1.
// @import lib/numeric/log
// @import lib/numeric/nan

fn log1p_of(x: vec4<f32>) -> vec4<f32> {
    let near = (x > vec4<f32>(-0.29)) & (x < vec4<f32>(0.41));
    return keep_nan(x, select(log_of(1.0 + x), log_of_rest(x), near));
}
