// The error function and its inverse. Polynomials are fitted, off by less than 1e-8 of the result.
// @import lib/numeric/exp
// @import lib/numeric/log
// @import lib/numeric/sign

// Up to 1 a polynomial; beyond, the complement as exp of one, to 4, where f32 has no difference from 1.
fn error_function(x: vec4<f32>) -> vec4<f32> {
    let a = min(abs(x), vec4<f32>(4.0));
    let z = min(a * a, vec4<f32>(1.0));
    let tail = -0.02685381187 + z * (0.005188327559 + z * (-8.010192516e-4 + z * 7.853857691e-5));
    let near = a * (1.128379166 + z * (-0.3761262582 + z * (0.1128358515 + z * tail)));
    let u = a - 2.0;
    let last = -0.003570519406 + u * (7.302125747e-4 + u * (-1.377059699e-4 + u * 2.169763938e-5));
    let middle = 0.9237509809 + u * (0.01646581131 + u * last);
    let far = 1.0 - exp_of(-(5.36494126 + u * (4.418160784 + u * middle)));
    return keep_nan(x, with_sign_of(x, select(far, near, a < vec4<f32>(1.0))));
}

// x times a polynomial of w = -log(1 - x²), or of its root (M. Giles, "Approximating the erfinv
// function", 2011).
fn error_inverse(x: vec4<f32>) -> vec4<f32> {
    let a = abs(x);
    let w = -log_of((1.0 - a) * (1.0 + a));
    let u = w - 2.5;
    var near = 4.661706339e-7 + u * (2.323264086e-8 - u * 8.791053979e-9);
    near = 2.183444393e-4 + u * (-4.963347737e-6 + u * (-3.462704722e-6 + u * near));
    near = 0.2466402862 + u * (-0.004177386781 + u * (-0.001252741879 + u * near));
    near = 1.501409359 + u * near;
    let v = sqrt(w) - 3.0;
    var far = -7.432669837e-5 + v * (-3.179026642e-4 + v * 1.274459626e-4);
    far = 0.005683477878 + v * (-0.003588180165 + v * (0.001494934994 + v * far));
    far = 1.001675074 + v * (0.009445655027 + v * (-0.007639174876 + v * far));
    far = 2.832976796 + v * far;
    let value = x * select(near, far, w > vec4<f32>(5.0));
    let bits = bitcast<vec4<u32>>(a);
    let at_one = infinite_where(bits == vec4<u32>(0x3f800000u), x, value);
    return keep_nan(x, nan_where(bits > vec4<u32>(0x3f800000u), at_one));
}
