// y = a to the power of b modulo the range of the type, integers, with broadcasting; 0 for a fraction.
// @import lib/elementwise/binary

const SIGNED: bool = true;

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    var power = vec4<u32>(1u);
    var square = bitcast<vec4<u32>>(a);
    let left = bitcast<vec4<u32>>(b);
    // @unroll
    for (var bit = 0u; bit < 32u; bit++) {
        power *= select(vec4<u32>(1u), square, (left & vec4<u32>(1u << bit)) != vec4<u32>(0u));
        square *= square;
    }
    // A fraction is left of all but 1 and -1, whose powers repeat.
    let below = vec4<bool>(SIGNED) & (left > vec4<u32>(0x7fffffffu));
    let base = bitcast<vec4<u32>>(a);
    let one = (base == vec4<u32>(1u)) | (base == vec4<u32>(0xffffffffu));
    return bitcast<vec4<Value>>(select(power, vec4<u32>(0u), below & !one));
}
