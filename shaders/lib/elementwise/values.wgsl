// What values are in registers, for kernels that take floats and integers.

alias Value = f32;
const FLOAT: bool = true;   // or none of them is NaN

// y, but NaN where x is; see lib/numeric/nan.
fn keep_nan_values(x: vec4<Value>, y: vec4<Value>) -> vec4<Value> {
    let magnitude = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return select(y, x, (magnitude > vec4<u32>(0x7f800000u)) & vec4<bool>(FLOAT));
}
