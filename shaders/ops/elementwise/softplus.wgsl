// y = log(1 + eˣ), without overflow for large x and without cancellation for small eˣ.
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    let e = exp(-abs(x));
    // log(1 + e) = 2 artanh(s), s at most a third: a driver's log may be off by 1e-6 near one.
    let s = e / (2.0 + e);
    let t = s * s;
    let tail = 1.0 / 7.0 + t * (1.0 / 9.0 + t * (1.0 / 11.0 + t * (1.0 / 13.0)));
    let series = 1.0 + t * (1.0 / 3.0 + t * (1.0 / 5.0 + t * tail));
    return select(vec4<f32>(0.0), x, x > vec4<f32>(0.0)) + 2.0 * s * series;
}
