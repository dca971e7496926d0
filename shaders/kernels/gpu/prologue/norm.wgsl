// What a product with f32 activations does with a vector of a row: it multiplies with the weight of a
// norm, and adds up the squares of which it makes the factor of that norm, when its sums are done.
// @import formats/vec4/f32 as gain

fn buf_values(at: u32, of_row: u32, squares: ptr<function, f32>) -> vec4<f32> {
    let own = x_load4(at);
    *squares += dot(own, own);
    return own * gain_load4(params.gain_offset / 4u + of_row);
}
