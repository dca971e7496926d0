// How a lane multiplies keys and adds up weighted values: in f32.

alias buf_Vector = vec4<f32>;

// What queries of these magnitudes are divided by.
fn buf_power(largest: f32) -> f32 {
    return 1.0;
}

// A score, and the products of a lane's share of a key with that of query `r`.
fn buf_score(
    start: f32, key: ptr<function, array<buf_Vector, K_QUADS>>,
    query: ptr<function, array<buf_Vector, ROWS * K_QUADS>>, r: u32, power: f32,
) -> f32 {
    var score = start;
    // @unroll
    for (var i = 0u; i < K_QUADS; i++) {
        // @unroll
        for (var d = 0u; d < 4u; d++) {
            score = fma((*key)[i][d], (*query)[r * K_QUADS + i][d], score);
        }
    }
    return score;
}

fn buf_begin(sum: vec4<f32>) -> vec4<f32> {
    return sum;
}

fn buf_end(sum: vec4<f32>, made: vec4<f32>) -> vec4<f32> {
    return made;
}
