// Columns of a tile from values in f32, which are rounded to f16 when they are put, 32 values an item.

struct buf_Item { values: array<vec4<f32>, 8> }

fn buf_item(group: u32) -> buf_Item {
    var values: array<vec4<f32>, 8>;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        values[k] = x_load4(group + k);
    }
    return buf_Item(values);
}

// A group that is put, what it is multiplied by, and what it then lacks.
struct buf_Column { values: array<vec4<f32>, 8>, by: f32, power: f32 }

fn buf_column(item: buf_Item) -> buf_Column {
    let power = power_of(item.values);
    return buf_Column(item.values, power.y, power.x);
}

fn buf_four(column: buf_Column, k: u32) -> vec4<f16> {
    return vec4<f16>(column.values[k] * column.by);
}
