// Sum of the products of eight weights and eight values, both in f16.

fn buf_product(w: Group, x: F16Column) -> f32 {
    var sum = w.low.xy * x.low.xy;
    sum = fma(w.low.zw, x.low.zw, sum);
    sum = fma(w.high.xy, x.high.xy, sum);
    sum = fma(w.high.zw, x.high.zw, sum);
    return f32(sum.x + sum.y) * x.scale;
}

fn buf_add(rows: array<Group, SOURCES>, x: F16Column, c: u32, sums: ptr<function, array<f32, SUMS>>) {
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        (*sums)[r * COLS + c] += buf_product(rows[r], x);
    }
}
