// A group of 32 values in f16, as f16_activations makes it; in planes, neighbouring lanes read what lies side
// by side.

const buf_PLANAR: bool = true;
const buf_NIBBLES: bool = false;  // in the place of values there are factors of nibbles and of bytes

struct F16Column { values: array<vec4<f16>, 8>, scale: f32, sum: f32, first: f32, squares: f32 }

@group(0) @binding(0) var<storage, read> buf: array<vec4<f16>>;
@group(0) @binding(0) var<storage, read> tails: array<vec4<f32>>;

alias buf_Column = F16Column;

fn buf_column(group: u32, lane: u32) -> F16Column {
    return buf_column_ahead(group, 0u, lane);
}

// The group so much behind another, which addresses take as an offset where it is known.
fn buf_column_ahead(group: u32, ahead: u32, lane: u32) -> F16Column {
    let far = select(5u * ahead, ahead, buf_PLANAR);
    let plane = params.n * params.groups;
    let tail = tails[select(5u * group + 4u, 4u * plane + group, buf_PLANAR) + far];
    var values: array<vec4<f16>, 8>;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        let at_k = select(5u * group + k / 2u, k / 2u * plane + group, buf_PLANAR);
        values[k] = buf[2u * at_k + (2u * far + k % 2u)];
    }
    if buf_NIBBLES {
        // @unroll
        for (var k = 0u; k < 4u; k++) {
            values[k] += values[k + 4u];
            values[k + 4u] *= 16.0h;
        }
    }
    return F16Column(values, tail.x, tail.y, tail.z, tail.w);
}
