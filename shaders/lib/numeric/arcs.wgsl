// Inverse trigonometric functions: WGSL lets a driver's be off by 2⁻¹¹. Polynomials are fitted, off by
// less than 1e-8 of the result.
// @import lib/numeric/nan
// @import lib/numeric/sign

// Angles in two numbers, the second what the first lacks.
const RIGHT: vec2<f32> = vec2<f32>(1.5707964, -4.3711388e-8);   // π/2
const STRAIGHT: vec2<f32> = vec2<f32>(3.1415927, -8.742278e-8);   // π

fn angle_less(angle: vec2<f32>, by: vec4<f32>) -> vec4<f32> {
    return angle.x - (by - angle.y);
}

// atan t for t from 0 to 1; that of more than √2 - 1 is π/4 + atan((t - 1) / (t + 1)).
fn arc_of_ratio(t: vec4<f32>) -> vec4<f32> {
    let far = t > vec4<f32>(0.41421357);
    let u = select(t, (t - 1.0) / (t + 1.0), far);
    let z = u * u;
    let tail = -0.1424342178 + z * (0.1059294312 - z * 0.06075908392);
    let arc = u + u * z * (-0.333333151 + z * (0.1999846597 + z * tail));
    return select(arc, 0.5 * RIGHT.x + (arc + 0.5 * RIGHT.y), far);
}

fn arc_tangent(x: vec4<f32>) -> vec4<f32> {
    let a = abs(x);
    let over = a > vec4<f32>(1.0);
    let arc = arc_of_ratio(select(a, 1.0 / a, over));
    return keep_nan(x, with_sign_of(x, select(arc, angle_less(RIGHT, arc), over)));
}

struct HalfArc { far: vec4<bool>, arc: vec4<f32> }

// asin a for a up to 1/2; beyond, half of acos a, as asin √((1 - a) / 2).
fn half_arc(a: vec4<f32>) -> HalfArc {
    let far = a > vec4<f32>(0.5);
    let z = select(a * a, 0.5 - 0.5 * a, far);
    let s = select(a, sqrt(z), far);
    let tail = 0.04547654475 + z * (0.0241466595 + z * 0.04222593948);
    return HalfArc(far, s + s * z * (0.1666675348 + z * (0.07495252652 + z * tail)));
}

fn beyond_one(x: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x3f800000u);
}

fn arc_sine(x: vec4<f32>) -> vec4<f32> {
    let found = half_arc(abs(x));
    let arc = select(found.arc, angle_less(RIGHT, 2.0 * found.arc), found.far);
    return nan_where(beyond_one(x), with_sign_of(x, arc));
}

fn arc_cosine(x: vec4<f32>) -> vec4<f32> {
    let found = half_arc(abs(x));
    let below = angle_less(STRAIGHT, 2.0 * found.arc);
    let far = select(2.0 * found.arc, below, is_negative(x));
    let near = angle_less(RIGHT, with_sign_of(x, found.arc));
    return nan_where(beyond_one(x), select(near, far, found.far));
}

// Angle of the point (x, y), with the cases of C's atan2.
fn arc_of_point(y: vec4<f32>, x: vec4<f32>) -> vec4<f32> {
    let large = max(abs(x), abs(y));
    // So that no quotient is taken of numbers near the ends of f32.
    let down = select(vec4<f32>(1.0), vec4<f32>(8.673617379884035e-19), large > vec4<f32>(1e18));
    let factor = select(down, vec4<f32>(1.152921504606847e18), large < vec4<f32>(1e-18));
    let a = abs(x) * factor;
    let b = abs(y) * factor;
    let ratio = select(min(a, b) / max(a, b), vec4<f32>(1.0), a == b);
    let both_zero = large == vec4<f32>(0.0);
    let arc = arc_of_ratio(select(ratio, vec4<f32>(0.0), both_zero));
    let first = select(arc, angle_less(RIGHT, arc), b > a);
    let angle = select(first, angle_less(STRAIGHT, first), is_negative(x));
    return keep_nan(x, keep_nan(y, with_sign_of(y, angle)));
}
