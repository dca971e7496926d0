// F16 weights as they are, eight at a time: `i` counts eights along the rows.

struct buf_Words { low: vec4<f16>, high: vec4<f16> }

@group(0) @binding(0) var<storage, read> buf: array<vec4<f16>>;

fn buf_words(i: u32) -> buf_Words {
    return buf_Words(buf[2u * i], buf[2u * i + 1u]);
}
