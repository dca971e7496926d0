// F16 weights as they are, eight at a time: `i` counts eights along the rows.

struct Group { low: vec4<f16>, high: vec4<f16> }

alias buf_Row = u32;

struct buf_Words { low: vec4<f16>, high: vec4<f16> }

@group(0) @binding(0) var<storage, read> buf: array<vec4<f16>>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

fn buf_row(row: u32) -> u32 {
    return 2u * row;
}

fn buf_words_in(row: u32, i: u32) -> buf_Words {
    return buf_Words(buf[row + 2u * i], buf[row + 2u * i + 1u]);
}

fn buf_words(i: u32) -> buf_Words {
    return buf_words_in(0u, i);
}

fn buf_group(words: buf_Words, i: u32, lane: u32) -> Group {
    return Group(words.low, words.high);
}
