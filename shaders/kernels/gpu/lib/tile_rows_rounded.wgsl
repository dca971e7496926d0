// Rows of a tile from weights of any format, in f32 until they are put, 32 values an item.

struct buf_Item { values: array<vec4<f32>, 8> }

fn buf_item(group: u32) -> buf_Item {
    var values: array<vec4<f32>, 8>;
    weights_load32(group, &values);
    return buf_Item(values);
}

// What a group lacks when it is put, and what it is multiplied by.
fn buf_power(item: buf_Item) -> vec2<f32> {
    return power_of(item.values);
}

fn buf_four(item: buf_Item, k: u32, by: f32) -> vec4<f16> {
    return vec4<f16>(item.values[k] * by);
}
