// Rows of a tile from weights in f16, which stay as they are until they are put, 32 values an item.

struct buf_Item { values: array<vec4<f16>, 8> }

fn buf_item(group: u32) -> buf_Item {
    var item: buf_Item;
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        let words_k = weights_words(group * 4u + k);
        item.values[2u * k] = words_k.low;
        item.values[2u * k + 1u] = words_k.high;
    }
    return item;
}

// What a group lacks when it is put, and what it is multiplied by: powers of two that f16 has without
// bits missing. So the largest magnitude is below 4.
fn buf_power(item: buf_Item) -> vec2<f32> {
    var most = abs(item.values[0]);
    // @unroll
    for (var k = 1u; k < 8u; k++) {
        most = max(most, abs(item.values[k]));
    }
    let largest = bitcast<u32>(f32(max(max(most.x, most.y), max(most.z, most.w))));
    let power = clamp(largest & 0x7f800000u, 0x38800000u, 0x47000000u) - 0x00800000u;
    return vec2<f32>(bitcast<f32>(power), bitcast<f32>(0x7f000000u - power));
}

fn buf_four(item: buf_Item, k: u32, by: f32) -> vec4<f16> {
    return item.values[k] * f16(by);
}
