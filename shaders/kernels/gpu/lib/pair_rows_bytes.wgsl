// Pairs of rows of a tile from weights in blocks, which stay packed until they are put. An item is half a
// group of two rows; two threads side by side bring the same groups, and unpack a half each.

const buf_INTEGERS: bool = true;    // the scale of a group is all that goes with its quants, but for ZERO
const buf_ZERO: f32 = 8.0;          // the quant that is 0
const buf_BY_HALVES: bool = false;  // scales are of halves of groups

struct buf_Item { first: weights_Words, second: weights_Words }

fn buf_item(groups: vec2<u32>, half: u32) -> buf_Item {
    return buf_Item(weights_words(groups.x), weights_words(groups.y));
}

// Quants of two rows, their factors, the offsets subtracted after that, and the scales for their
// sums.
struct buf_Half { first: vec4<u32>, second: vec4<u32>, by: vec2<f32>, less: vec2<f32>, scale: vec2<f32> }
struct buf_Four { first: vec4<f16>, second: vec4<f16> }

// `g` is where the groups stand in their rows.
fn buf_half(item: buf_Item, groups: vec2<u32>, g: u32, half: u32) -> buf_Half {
    let place = weights_place(g);
    let a = weights_group(item.first, groups.x, place);
    let b = weights_group(item.second, groups.y, place);
    let first = select(a.low, a.high, half == 1u);
    let second = select(b.low, b.high, half == 1u);
    if buf_INTEGERS {
        return buf_Half(first, second, vec2<f32>(1.0), vec2<f32>(buf_ZERO), vec2<f32>(a.scale.x, b.scale.x));
    }
    let powers = vec2<f32>(buf_power(a), buf_power(b));
    let inverse = bitcast<vec2<f32>>(vec2<u32>(0x7f000000u) - bitcast<vec2<u32>>(powers));
    let by = vec2<f32>(select(a.scale.x, a.scale.y, half == 1u), select(b.scale.x, b.scale.y, half == 1u));
    let less = vec2<f32>(
        select(a.minimum.x, a.minimum.y, half == 1u), select(b.minimum.x, b.minimum.y, half == 1u),
    );
    return buf_Half(first, second, by * inverse, less * inverse, powers);
}

// The largest power of two that is not above what a group of such a scale and minimum may have.
fn buf_power(w: Group) -> f32 {
    let most = max(abs(w.scale.x), abs(w.scale.y)) * 64.0 + max(abs(w.minimum.x), abs(w.minimum.y));
    return bitcast<f32>(min(bitcast<u32>(most) & 0x7f800000u, 0x7e800000u));
}

fn buf_four(rows: buf_Half, q: u32) -> buf_Four {
    var first = buf_values(rows.first[q]);
    var second = buf_values(rows.second[q]);
    if buf_INTEGERS {
        first -= buf_ZERO;
        second -= buf_ZERO;
    } else {
        first = fma(first, vec4<f32>(rows.by.x), vec4<f32>(-rows.less.x));
        second = fma(second, vec4<f32>(rows.by.y), vec4<f32>(-rows.less.y));
    }
    return buf_Four(vec4<f16>(first), vec4<f16>(second));
}

fn buf_values(quants: u32) -> vec4<f32> {
    if weights_PAIRS == 0u {
        return vec4<f32>(unpack4xI8(quants));
    }
    return vec4<f32>(unpack4xU8(quants));
}
