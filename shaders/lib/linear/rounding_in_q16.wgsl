// A group of results in sixteen bits, rounded by one lane as `q16_activations` does. The importing file has
// `y`, in words.
// @import lib/q8/q16

// `squares` go with the group, whatever it was multiplied with.
fn buf_put(group: u32, values: ptr<function, array<vec4<f32>, 8>>, squares: f32) {
    let groups = params.n * (params.m / 32u);
    let vectors = q16_group(values, squares);
    for (var i = 0u; i < 5u; i++) {
        for (var k = 0u; k < 4u; k++) {
            y[(i * groups + group) * 4u + k] = vectors[i][k];
        }
    }
}
