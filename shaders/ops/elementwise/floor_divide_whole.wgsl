// y = a / b rounded down, integers, with broadcasting.
// @import lib/numeric/whole_division
// @import lib/elementwise/binary

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    let found = whole_division(bitcast<vec4<u32>>(a), bitcast<vec4<u32>>(b));
    return bitcast<vec4<Value>>(found.quotient);
}
