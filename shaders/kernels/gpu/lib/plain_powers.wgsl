// Plain keys and values that f16_pixels rounded: the powers of two by which they were divided. The importing file has
// `k_load4`, `v_load4` and plain_keys; behind the last value come a head of zeros and then the exponent.

fn power_of_keys() -> f32 {
    return power_by(k_load4(batches() * (params.k_strides.x / 4u) + K_VEC4S).x);
}

fn power_of_values() -> f32 {
    return power_by(v_load4(batches() * (params.v_strides.x / 4u) + V_VEC4S).x);
}

fn batches() -> u32 {
    return params.rows / (params.tokens * params.group);
}

// exp2 may be off by a bit.
fn power_by(exponent: f32) -> f32 {
    return bitcast<f32>(u32(i32(exponent) + 127) << 23u);
}
