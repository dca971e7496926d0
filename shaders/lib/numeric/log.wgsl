// Logarithms from the bits of a number: WGSL lets a driver's own be off by 2⁻²¹ between 0.5 and 2, where
// the logarithm itself may be smaller than that.

struct Halved { exponent: vec4<f32>, rest: vec4<f32> }

// |x| = 2^exponent · (1 + rest), the rest between √½ - 1 and √2 - 1; x is neither zero nor infinite.
fn halved(x: vec4<f32>) -> Halved {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    // A subnormal number is shifted until its first bit stands where that of others does.
    let below = bits < vec4<u32>(0x800000u);
    let shift = select(vec4<u32>(0u), countLeadingZeros(bits) - vec4<u32>(8u), below);
    let power = select(bits >> vec4<u32>(23u), vec4<u32>(1u), below);
    let mantissa = (bits << shift) & vec4<u32>(0x7fffffu);
    let upper = mantissa > vec4<u32>(0x3504f3u);   // above √2: half of it, and one power more
    let one = select(vec4<u32>(0x3f800000u), vec4<u32>(0x3f000000u), upper);
    let exponent = vec4<i32>(power + vec4<u32>(upper)) - vec4<i32>(shift) - vec4<i32>(127);
    return Halved(vec4<f32>(exponent), bitcast<vec4<f32>>(mantissa | one) - 1.0);
}

// log(1 + f) = 2 artanh(s), s = f / (2 + f) at most a sixth. As f = 2s + s · f, all of it but f itself
// is small, and with it what a division is off by.
fn log_of_rest(f: vec4<f32>) -> vec4<f32> {
    let s = f / (2.0 + f);
    let z = s * s;
    let series = 2.0 * z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0))));
    return f - s * (f - series);
}

// A logarithm of x, but what it is where x is zero, below, infinite or NaN.
fn log_ends(x: vec4<f32>, logarithm: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x);
    let magnitude = bits & vec4<u32>(0x7fffffffu);
    var found = bitcast<vec4<u32>>(logarithm);
    found = select(found, magnitude, magnitude > vec4<u32>(0x7f7fffffu));
    found = select(found, vec4<u32>(0x7fc00000u), bits > vec4<u32>(0x80000000u));
    found = select(found, vec4<u32>(0xff800000u), magnitude == vec4<u32>(0u));
    return bitcast<vec4<f32>>(found);
}

fn log_of(x: vec4<f32>) -> vec4<f32> {
    let parts = halved(x);
    // log 2 in two numbers, the first of so few bits that its multiples are exact.
    let rest = log_of_rest(parts.rest) - parts.exponent * 2.12194440e-4;
    return log_ends(x, rest + parts.exponent * 0.693359375);
}
