// Sum of the products of 32 weights and 32 values of a column, both in bytes.
// @import lib/q8/product

fn buf_product(w: Group, x: Column) -> f32 {
    return product(w, x);
}

fn buf_add(rows: array<Group, SOURCES>, x: Column, c: u32, sums: ptr<function, array<f32, SUMS>>) {
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        (*sums)[r * COLS + c] += buf_product(rows[r], x);
    }
}
