// Numbers times powers of two, by the bits of an exponent.

// 2ⁿ for n from -126 to 127.
fn power_of_two(n: vec4<i32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(n + vec4<i32>(127)) << vec4<u32>(23u));
}

// x · 2ⁿ for whole n from -252 to 254: one power of two may lie beyond f32.
fn scaled(x: vec4<f32>, n: vec4<f32>) -> vec4<f32> {
    let whole = vec4<i32>(n);
    let half = whole / vec4<i32>(2);
    return x * power_of_two(half) * power_of_two(whole - half);
}
