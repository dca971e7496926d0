// Sum of the products of 32 weights and 32 values of a column, both in bytes.
// @import lib/q8/product

fn buf_product(w: Group, x: Column) -> f32 {
    return product(w, x);
}
