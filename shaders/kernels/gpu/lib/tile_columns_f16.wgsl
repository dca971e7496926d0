// Columns of a tile that f16_activations has rounded, 32 values an item.

alias buf_Item = F16Column;

fn buf_item(group: u32) -> F16Column {
    return x_column(group, 0u);
}

struct buf_Column { values: array<vec4<f16>, 8>, power: f32 }

fn buf_column(item: F16Column) -> buf_Column {
    return buf_Column(item.values, item.scale);
}

fn buf_four(column: buf_Column, k: u32) -> vec4<f16> {
    return column.values[k];
}
