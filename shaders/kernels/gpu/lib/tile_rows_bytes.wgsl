// Rows of a tile from weights in blocks, which stay packed until they are put, 32 values an item. What a
// group may have at most follows from its scale and minimum, so its values are multiplied once.

const buf_MINIMA: bool = true;   // other than a quant that is 0
const buf_IN_F16: bool = false;  // multiplied in pairs of f16, where f32 and f16 do not mix in one instruction

struct buf_Item { words: weights_Words, group: u32 }

fn buf_item(group: u32) -> buf_Item {
    return buf_Item(weights_words(group), group);
}

// A group that is put, scaled so that nothing is above 4, and what it then lacks.
struct buf_Row { low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>, minimum: vec2<f32>, power: f32 }

fn buf_row(item: buf_Item, g: u32) -> buf_Row {
    let w = weights_group(item.words, item.group, weights_place(g));
    let quant = select(64.0, 128.0, weights_PAIRS == 0u);  // the largest magnitude
    var most = max(abs(w.scale.x), abs(w.scale.y)) * quant;
    if buf_MINIMA {
        most += max(abs(w.minimum.x), abs(w.minimum.y));
    }
    let power = min(bitcast<u32>(most) & 0x7f800000u, 0x7e800000u);
    let by = bitcast<f32>(0x7f000000u - power);
    return buf_Row(w.low, w.high, w.scale * by, w.minimum * by, bitcast<f32>(power));
}

fn buf_four(row: buf_Row, k: u32) -> vec4<f16> {
    if k < 4u {
        return buf_values(row.low[k % 4u], row.scale.x, row.minimum.x);
    }
    return buf_values(row.high[k % 4u], row.scale.y, row.minimum.y);
}

// Quants of eight bits are exact in f16.
fn buf_values(quants: u32, scale: f32, minimum: f32) -> vec4<f16> {
    if buf_IN_F16 && weights_PAIRS == 0u {
        return fma(vec4<f16>(unpack4xI8(quants)), vec4<f16>(f16(scale)), vec4<f16>(f16(-minimum)));
    }
    if buf_IN_F16 {
        return fma(vec4<f16>(unpack4xU8(quants)), vec4<f16>(f16(scale)), vec4<f16>(f16(-minimum)));
    }
    if weights_PAIRS == 0u {
        return vec4<f16>(vec4<f32>(unpack4xI8(quants)) * scale - minimum);
    }
    return vec4<f16>(vec4<f32>(unpack4xU8(quants)) * scale - minimum);
}
