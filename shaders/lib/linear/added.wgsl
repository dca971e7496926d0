// What is added to a product with weights, if anything. The importing file has `addend_load` and the
// fields addend_offset and addend_stride.

const ADDS: bool = false;

// A stride of zero adds the same row to every column of x: a bias.
fn added(col: u32, row: u32, sum: f32) -> f32 {
    if ADDS {
        return sum + addend_load(params.addend_offset + col * params.addend_stride + row);
    }
    return sum;
}
