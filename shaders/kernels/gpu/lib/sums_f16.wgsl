// How a lane multiplies keys and adds up weighted values: in pairs of f16, a few products of a score, and a
// few positions of a value, which then go into f32. Queries are divided by a power of two, so that products
// are no larger than keys; weights are at most 1.

alias buf_Number = f16;
alias buf_Vector = vec4<f16>;

// The power of two above the largest magnitude of a query.
fn buf_power(largest: f32) -> f32 {
    let power = 2.0 * bitcast<f32>(bitcast<u32>(largest) & 0x7f800000u);
    return select(power, 1.0, power == 0.0);
}

// The products of a lane's share of a key with that of query `r`.
fn buf_part(
    key: ptr<function, array<buf_Vector, K_VEC4S>>,
    query: ptr<function, array<buf_Vector, ROWS * K_VEC4S>>, r: u32,
) -> f32 {
    var products = (*key)[0] * (*query)[r * K_VEC4S];
    // @unroll
    for (var i = 1u; i < K_VEC4S; i++) {
        products = fma((*key)[i], (*query)[r * K_VEC4S + i], products);
    }
    let pair = products.xy + products.zw;
    return f32(pair.x) + f32(pair.y);
}

fn buf_begin(sum: vec4<f32>) -> vec4<f16> {
    return vec4<f16>();
}

fn buf_end(sum: vec4<f32>, made: vec4<f16>) -> vec4<f32> {
    return sum + vec4<f32>(made);
}
