// Rows of a tile from weights of any format, in f32 until they are put, 32 values an item.

struct buf_Item { values: array<vec4<f32>, 8> }

fn buf_item(group: u32) -> buf_Item {
    var values: array<vec4<f32>, 8>;
    weights_load32(group, &values);
    return buf_Item(values);
}

// A group that is put, what it is multiplied by, and what it then lacks.
struct buf_Row { values: array<vec4<f32>, 8>, by: f32, power: f32 }

fn buf_row(item: buf_Item, g: u32) -> buf_Row {
    let power = power_of(item.values);
    return buf_Row(item.values, power.y, power.x);
}

fn buf_four(row: buf_Row, k: u32) -> vec4<f16> {
    return vec4<f16>(row.values[k] * row.by);
}
