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

// A group that is put, what it is multiplied by, and what it then lacks: powers of two that f16 has
// without bits missing. So the largest magnitude is below 4.
struct buf_Row { values: array<vec4<f16>, 8>, by: f16, power: f32 }

fn buf_row(item: buf_Item, g: u32) -> buf_Row {
    var most = abs(item.values[0]);
    // @unroll
    for (var k = 1u; k < 8u; k++) {
        most = max(most, abs(item.values[k]));
    }
    let largest = bitcast<u32>(f32(max(max(most.x, most.y), max(most.z, most.w))));
    let power = clamp(largest & 0x7f800000u, 0x38800000u, 0x47000000u) - 0x00800000u;
    let by = f16(bitcast<f32>(0x7f000000u - power));
    return buf_Row(item.values, by, bitcast<f32>(power));
}

fn buf_four(row: buf_Row, k: u32) -> vec4<f16> {
    return row.values[k] * row.by;
}
