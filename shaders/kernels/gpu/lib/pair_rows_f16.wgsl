// Pairs of rows of a tile from weights in f16. An item is half a group of two rows, with a scale of its own:
// the largest magnitude of 16 values becomes less than 4.

const buf_BY_HALVES: bool = true;

struct buf_Item { first: array<vec4<f16>, 4>, second: array<vec4<f16>, 4> }

fn buf_item(groups: vec2<u32>, half: u32) -> buf_Item {
    return buf_Item(buf_sixteen(4u * groups.x + 2u * half), buf_sixteen(4u * groups.y + 2u * half));
}

fn buf_sixteen(at: u32) -> array<vec4<f16>, 4> {
    let first = weights_words(at);
    let second = weights_words(at + 1u);
    return array<vec4<f16>, 4>(first.low, first.high, second.low, second.high);
}

struct buf_Half { first: array<vec4<f16>, 4>, second: array<vec4<f16>, 4>, by: vec2<f16>, scale: vec2<f32> }
struct buf_Four { first: vec4<f16>, second: vec4<f16> }

fn buf_half(item: buf_Item, groups: vec2<u32>, g: u32, half: u32) -> buf_Half {
    let powers = vec2<u32>(buf_power(item.first), buf_power(item.second));
    let by = bitcast<vec2<f32>>(vec2<u32>(0x7f000000u) - powers);
    return buf_Half(item.first, item.second, vec2<f16>(by), bitcast<vec2<f32>>(powers));
}

// The bits, as f32, of half the largest power of two that is not above the largest magnitude, or of one of
// which f16 has the inverse.
fn buf_power(values: array<vec4<f16>, 4>) -> u32 {
    let most = max(max(abs(values[0]), abs(values[1])), max(abs(values[2]), abs(values[3])));
    let largest = bitcast<u32>(f32(max(max(most.x, most.y), max(most.z, most.w))));
    return clamp(largest & 0x7f800000u, 0x38800000u, 0x47000000u) - 0x00800000u;
}

fn buf_four(rows: buf_Half, q: u32) -> buf_Four {
    return buf_Four(rows.first[q] * rows.by.x, rows.second[q] * rows.by.y);
}
