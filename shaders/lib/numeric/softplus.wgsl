// log(1 + e) loses what is small beside 1; its series does not.
fn softplus(value: f32) -> f32 {
    let e = exp(-abs(value));
    let series = e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - e * 0.25)));
    return max(value, 0.0) + select(log(1.0 + e), series, e < 0.01);
}
