// Tangent of angles in radians, for every f32: beside a pole all bits of the angle matter, so angles beyond
// π/4 are reduced as those far from zero are.
// @import lib/numeric/nan
// @import lib/rope/sine

const EIGHTH: f32 = 0.7853982;   // of a turn

// tan r for |r| up to π/4; the polynomial is fitted, off by 2e-9 of the result.
fn tangent_of_rest(r: vec4<f32>) -> vec4<f32> {
    let z = r * r;
    let tail = 0.01084178338 + z * (8.175747175e-5 + z * 0.004380212382);
    let middle = 0.1333265975 + z * (0.05406033651 + z * (0.02127995017 + z * tail));
    return r + r * z * (0.3333334986 + z * middle);
}

fn tangent(x: vec4<f32>) -> vec4<f32> {
    var rest = x;
    var quadrant = vec4<u32>(0u);
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        if abs(x[k]) > EIGHTH {
            let angle = far_angle(x[k]);
            rest[k] = angle.rest;
            quadrant[k] = angle.quadrant;
        }
    }
    let value = tangent_of_rest(rest);
    let odd = (quadrant & vec4<u32>(1u)) == vec4<u32>(1u);
    return keep_nan(x, select(value, -1.0 / value, odd));
}
