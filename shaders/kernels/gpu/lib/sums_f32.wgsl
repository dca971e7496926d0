// How a lane multiplies keys and adds up weighted values: in f32.

alias buf_Number = f32;
alias buf_Vector = vec4<f32>;

// What queries of these magnitudes are divided by.
fn buf_power(largest: f32) -> f32 {
    return 1.0;
}

// The products of a lane's share of a key with that of query `r`.
fn buf_part(
    key: ptr<function, array<buf_Vector, K_VEC4S>>,
    query: ptr<function, array<buf_Vector, ROWS * K_VEC4S>>, r: u32,
) -> f32 {
    var sum = 0.0;
    // @unroll
    for (var i = 0u; i < K_VEC4S; i++) {
        // @unroll
        for (var d = 0u; d < 4u; d++) {
            sum = fma((*key)[i][d], (*query)[r * K_VEC4S + i][d], sum);
        }
    }
    return sum;
}

fn buf_begin(sum: vec4<f32>) -> vec4<f32> {
    return sum;
}

fn buf_end(sum: vec4<f32>, made: vec4<f32>) -> vec4<f32> {
    return made;
}
