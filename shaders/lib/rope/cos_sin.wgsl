// Cosine and sine of an angle of up to 2²⁰ quarter turns.
//
// Drivers may be off by 2⁻¹¹ in sin and cos, so both are computed here: the angle is reduced to
// [-π/4, π/4] by a multiple of π/2 held in five parts (Cody & Waite), then a Taylor polynomial.

fn cos_sin(angle: f32) -> vec2<f32> {
    let turns = round(angle * 0.6366197723675814);
    // All parts of π/2 but the last have 4 bits: their products with up to 2²⁰ turns are exact.
    var r = angle - turns * 1.5;
    r = r - turns * 0.0703125;
    r = r - turns * 4.57763671875e-4;
    r = r - turns * 2.47955322265625e-5;
    r = r - turns * 1.2675907951e-6;
    let r2 = r * r;
    let odd = -1.6666667e-1 + r2 * (8.3333333e-3 + r2 * (-1.9841270e-4 + r2 * 2.7557319e-6));
    let sine = r + r * r2 * odd;
    let cosine = 1.0 + r2 * (-0.5 + r2 * (4.1666667e-2 + r2 * (-1.3888889e-3 + r2 * 2.4801587e-5)));
    let quadrant = i32(turns) & 3;
    let swapped = select(vec2<f32>(cosine, sine), vec2<f32>(-sine, cosine), (quadrant & 1) == 1);
    return select(swapped, -swapped, (quadrant & 2) == 2);
}
