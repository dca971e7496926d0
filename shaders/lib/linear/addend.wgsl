// The end of a product with weights: what is added to it, if anything, and the store. The importing
// file has `y` and the field m beside what lib/linear/added asks for.
// @import lib/linear/added

fn store(col: u32, row: u32, sum: f32) {
    y[col * params.m + row] = added(col, row, sum);
}
