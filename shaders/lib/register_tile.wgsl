// A tile of products in f32: 64 rows of weights by 32 columns of x lie in workgroup memory, 32 values
// of k of each, and a thread sums 8 rows by 4 columns. The importing file has `weights`.
// Tiles lie k-major in vectors of four k; one vector more a row keeps banks apart.

var<workgroup> tile_w: array<vec4<f32>, 576>;
var<workgroup> tile_x: array<vec4<f32>, 288>;

// A thread brings one row: 32 weights that lie in a group.
fn bring_weights(group: u32, lane: u32) {
    var values: array<vec4<f32>, 8>;
    weights_load32(group, &values);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        tile_w[lane * 9u + k] = values[k];
    }
}

fn multiply(rows: u32, cols: u32, sums: ptr<function, array<vec4<f32>, 8>>) {
    for (var k = 0u; k < 8u; k++) {
        let x0 = tile_x[cols * 9u + k];
        let x1 = tile_x[cols * 9u + 9u + k];
        let x2 = tile_x[cols * 9u + 18u + k];
        let x3 = tile_x[cols * 9u + 27u + k];
        // @unroll
        for (var r = 0u; r < 8u; r++) {
            let w_r = tile_w[(rows + r) * 9u + k];
            (*sums)[r] += vec4<f32>(dot(w_r, x0), dot(w_r, x1), dot(w_r, x2), dot(w_r, x3));
        }
    }
}
