// A group of results in eight bits, rounded by one lane as `q8_activations` does. The importing file has
// `y`, in words.
// @import lib/q8/q8
// @import lib/q8/parts

const buf_PLANAR: bool = false;

// `squares` go with the group, whatever it was multiplied with.
fn buf_put(group: u32, values: ptr<function, array<vec4<f32>, 8>>, squares: f32) {
    let groups = params.n / PARTS * (params.m / 32u);
    var vectors = q8_group(values);
    vectors[2].w = bitcast<u32>(squares);
    for (var i = 0u; i < 3u; i++) {
        let at = select(group * 3u + i, i * groups + group, buf_PLANAR);
        for (var k = 0u; k < 4u; k++) {
            y[at * 4u + k] = vectors[i][k];
        }
    }
}
