// What is added to four rows in a row of a product, as lib/linear/added adds to one; `row` counts fours. The
// importing file has `addend_load4` and the fields addend_offset and addend_stride, multiples of four.

const ADDS: bool = false;

fn four_added(col: u32, row: u32, sums: vec4<f32>) -> vec4<f32> {
    if ADDS {
        return sums + addend_load4((params.addend_offset + col * params.addend_stride) / 4u + row);
    }
    return sums;
}
