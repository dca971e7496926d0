// Where rows that lack the factor of a norm have its squares, see `wgpu_backend/ops/linear/normed.py`: behind
// their values, a number for each SQUARED of these, and zeros up to a whole vector of four.

const SQUARED: u32 = 64u;

// Vectors of squares behind a row of so many values.
fn square_vec4s(values: u32) -> u32 {
    return (values + SQUARED * 4u - 1u) / (SQUARED * 4u);
}
