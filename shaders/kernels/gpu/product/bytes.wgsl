// Sum of the products of 32 weights and 32 values of a column, both in bytes.
// @import lib/q8/product

fn buf_product(w: Group, x: Column) -> f32 {
    return product(w, x);
}

fn buf_products(rows: array<Group, SOURCES>, x: Column) -> array<f32, SOURCES> {
    var products: array<f32, SOURCES>;
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        products[r] = buf_product(rows[r], x);
    }
    return products;
}
