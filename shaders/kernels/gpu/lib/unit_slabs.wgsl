// Slabs of a product by matrix units whose columns are rows of x in f16, see f16_rows: a thread brings some rows of the
// weight and some vectors of columns, and puts them into workgroup memory. The importing file has `weights`, `x` and
// what unit_products wants.

struct Slab { w: array<array<vec4<f32>, 8>, W_ITEMS>, x: array<vec4<f16>, X_ITEMS> }
// Where the rows and columns of a thread begin, in groups of 32 and in vectors.
struct Starts { w: array<u32, W_ITEMS>, x: array<u32, X_ITEMS> }

// Vectors of a column: its values, and two with the exponent.
fn column_vectors() -> u32 {
    return params.groups * 8u + 2u;
}

// Where a column begins, in vectors.
fn column_start(col: u32) -> u32 {
    return params.x_offset / 4u + col * column_vectors();
}

// The power of two that a column lacks. exp2 may be off by a bit.
fn power_of(col: u32) -> f32 {
    let exponent = x[column_start(col) + params.groups * 8u].x;
    return bitcast<f32>(u32(i32(exponent) + 127) << 23u);
}

// The items of a thread in group `g` of each row and column.
fn brought(starts: Starts, g: u32) -> Slab {
    var slab: Slab;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        var values_j: array<vec4<f32>, 8>;
        weights_load32(starts.w[j] + g, &values_j);
        slab.w[j] = values_j;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        slab.x[j] = x[starts.x[j] + g * 8u];
    }
    return slab;
}

fn put_slab(slab: Slab, lane: u32) {
    put_rows(slab.w, lane);
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let v_j = lane + j * WG;
        if TILE_N * 8u % WG == 0u || v_j < TILE_N * 8u {
            tile_x[v_j / 8u * STRIDE + v_j % 8u] = slab.x[j];
        }
    }
}
