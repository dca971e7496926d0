// The end of a product with weights: what is added to it, if anything, and the store. The importing
// file has `y`, `addend_load` and the fields m, addend_offset and addend_stride.

const ADDS: bool = false;

// A stride of zero adds the same row to every column of x: a bias.
fn store(col: u32, row: u32, sum: f32) {
    var value = sum;
    if ADDS {
        value += addend_load(params.addend_offset + col * params.addend_stride + row);
    }
    y[col * params.m + row] = value;
}
