// Numbers of quants of four bits from a table in workgroup memory, by bytes: each has two quants, whose
// numbers are the lower bytes of the halves of a word. The importing kernel declares `WG`, a multiple
// of 16, and fills the table before any lane looks something up.
// @import lib/blocks/group

var<workgroup> nibble_pairs: array<u32, 256>;

// 16 numbers, a byte each.
fn fill_nibble_table(numbers: vec4<u32>, lane: u32) {
    let first = number_of(numbers, lane % 16u);
    for (var i = lane; i < 256u; i += WG) {
        nibble_pairs[i] = first | (number_of(numbers, i / 16u) << 16u);
    }
    workgroupBarrier();
}

fn number_of(numbers: vec4<u32>, quant: u32) -> u32 {
    let low = select(numbers.x, numbers.y, quant >= 4u);
    let high = select(numbers.z, numbers.w, quant >= 12u);
    return (select(low, high, quant >= 8u) >> (8u * (quant % 4u))) & 255u;
}

fn nibble_table_group(words: vec4<u32>, scale: f32, minimum: f32) -> Group {
    let first = numbers_of(words.x);
    let second = numbers_of(words.y);
    let third = numbers_of(words.z);
    let fourth = numbers_of(words.w);
    return Group(
        vec4<u32>(first.x, second.x, third.x, fourth.x),
        vec4<u32>(first.y, second.y, third.y, fourth.y),
        vec2<f32>(scale), vec2<f32>(minimum),
    );
}

// Numbers of the lower quants of four bytes, and of the upper ones.
fn numbers_of(quants: u32) -> vec2<u32> {
    let low = nibble_pairs[quants & 255u] | (nibble_pairs[(quants >> 8u) & 255u] << 8u);
    let high = nibble_pairs[(quants >> 16u) & 255u] | (nibble_pairs[quants >> 24u] << 8u);
    return vec2<u32>((low & 0xffffu) | (high << 16u), (low >> 16u) | (high & 0xffff0000u));
}
