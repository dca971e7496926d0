// Products of a slab in eight bits, which lies in workgroup memory as lib/q8_slab puts it.

const STEP_ROWS: u32 = 8u;       // whose integers a thread holds at once
const STEPS: u32 = 1u;           // that make ROWS
const DOTS: u32 = STEP_ROWS * COLS;
const ONE_ZERO: bool = false;    // for both halves

// Integer sums of some rows are interleaved: each depends on its own previous value, so adjacent
// instructions are independent. A word of x, which some hardware unpacks into bytes, is live for
// few instructions. The integers of two halves are added to one sum, so more of them are live at
// once.
fn multiply(row: u32, col: u32, sums: ptr<function, array<f32, SUMS>>) {
    // @unroll
    for (var s = 0u; s < SLAB; s++) {
        // @unroll
        for (var step = 0u; step < STEPS; step++) {
            let x_at = (col * SLAB + s) * 3u;
            let w_at = s * W_PLANE + row + step * STEP_ROWS * LANE_ROWS;
            var dots: array<i32, DOTS>;
            begin_dots(&dots);
            add_dots(x_at, w_at, &dots);
            if weights_TWO_SCALES {
                var second: array<i32, DOTS>;
                begin_dots(&second);
                add_dots(x_at + 1u, w_at + TILE_M, &second);
                add_two_scales(s, step, row, col, &dots, &second, sums);
            } else {
                add_dots(x_at + 1u, w_at + TILE_M, &dots);
                add_products(s, step, row, col, &dots, sums);
            }
        }
        if MINIMA {
            add_minima(s, false, row, col, sums);
            if weights_TWO_SCALES {
                add_minima(s, true, row, col, sums);
            }
        }
    }
}

fn begin_dots(dots: ptr<function, array<i32, DOTS>>) {
    // @unroll
    for (var r = 0u; r < STEP_ROWS; r++) {
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            (*dots)[r * COLS + c] = bitcast<i32>(ZERO);
        }
    }
}

// Adds the products of 16 weights and values, from vectors at these places on. The row that comes last
// goes first, so that one wait is for all.
fn add_dots(x_at: u32, w_at: u32, dots: ptr<function, array<i32, DOTS>>) {
    var x: array<vec4<u32>, COLS>;
    var w: array<vec4<u32>, STEP_ROWS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        x[c] = tile_x[x_at + c * SLAB * 3u];
    }
    // @unroll
    for (var r = 0u; r < STEP_ROWS; r++) {
        w[STEP_ROWS - 1u - r] = tile_w[w_at + (STEP_ROWS - 1u - r) * LANE_ROWS];
    }
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        // @unroll
        for (var r = 0u; r < STEP_ROWS; r++) {
            // @unroll
            for (var c = 0u; c < COLS; c++) {
                (*dots)[r * COLS + c] += dot4I8Packed(w[r][k], x[c][k]);
            }
        }
    }
}

// Adds sums of integers, times the scales of their rows and columns.
fn add_products(
    s: u32, step: u32, row: u32, col: u32,
    dots: ptr<function, array<i32, DOTS>>, sums: ptr<function, array<f32, SUMS>>,
) {
    // @unroll
    for (var r = 0u; r < STEP_ROWS; r++) {
        let at_r = step * STEP_ROWS + r;
        let scale_r = scale_at(s, 0u, at_r, row);
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let dot_c = bitcast<f32>((*dots)[r * COLS + c]);
            // Where `fma` rounds once, the difference costs no further instruction. It is exact
            // there, because a scale has few bits.
            let fused_c = fma(dot_c, scale_r, scale_at(s, 1u, at_r, row));
            let value_c = select((dot_c - ZERO) * scale_r, fused_c, FUSED);
            (*sums)[at_r * COLS + c] = fma(value_c, tail_at(s, 0u, col + c), (*sums)[at_r * COLS + c]);
        }
    }
}

// Adds those of halves, each with a scale. Where dot products are some thousands, ZERO's multiples are taken
// off at once: what is lost of them is about half of the larger scale.
fn add_two_scales(
    s: u32, step: u32, row: u32, col: u32, dots: ptr<function, array<i32, DOTS>>,
    second: ptr<function, array<i32, DOTS>>, sums: ptr<function, array<f32, SUMS>>,
) {
    // @unroll
    for (var r = 0u; r < STEP_ROWS; r++) {
        let at_r = step * STEP_ROWS + r;
        let low_r = scale_at(s, 0u, at_r, row);
        let high_r = scale_at(s, SCALES - 1u, at_r, row);
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let dot_c = bitcast<f32>((*dots)[r * COLS + c]);
            let other_c = bitcast<f32>((*second)[r * COLS + c]);
            var value = (dot_c - ZERO) * low_r + (other_c - ZERO) * high_r;
            if FUSED && ONE_ZERO {
                value = fma(other_c, high_r, fma(dot_c, low_r, scale_at(s, 1u, at_r, row)));
            } else if FUSED {
                value = fma(dot_c, low_r, -ZERO * low_r) + fma(other_c, high_r, -ZERO * high_r);
            }
            (*sums)[at_r * COLS + c] = fma(value, tail_at(s, 0u, col + c), (*sums)[at_r * COLS + c]);
        }
    }
}

// Adds the minima of groups, or with TWO_SCALES of their first halves or second ones.
fn add_minima(s: u32, second: bool, row: u32, col: u32, sums: ptr<function, array<f32, SUMS>>) {
    var x_sums: array<f32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let both_c = tail_at(s, 1u, col + c);
        x_sums[c] = both_c;
        if weights_TWO_SCALES {
            let first_c = tail_at(s, 2u, col + c);
            x_sums[c] = select(first_c, both_c - first_c, second);
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let minimum_r = scale_at(s, select(2u, 3u, second) % SCALES, r, row);
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let sum_c = (*sums)[r * COLS + c];
            (*sums)[r * COLS + c] = fma(x_sums[c], minimum_r, sum_c);
        }
    }
}

// A number of a group of a thread's row.
fn scale_at(s: u32, plane: u32, r: u32, row: u32) -> f32 {
    return scales[(s * SCALES + plane) * TILE_M + (r / 4u * LANE_ROWS + row) * 4u + r % 4u];
}

// A number of a group of a column: its scale, its sum, that of its first half, or of its squares.
fn tail_at(s: u32, number: u32, col: u32) -> f32 {
    return bitcast<f32>(tile_x[(col * SLAB + s) * 3u + 2u][number]);
}
