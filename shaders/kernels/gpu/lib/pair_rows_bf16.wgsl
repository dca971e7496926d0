// Pairs of rows of a tile from weights in bf16, in f32 until they are put. An item is half a group of two
// rows, with a scale of its own: the largest magnitude of 16 values becomes less than 2.

const buf_BY_HALVES: bool = true;

struct buf_Item { first: array<vec4<f32>, 4>, second: array<vec4<f32>, 4> }

fn buf_item(groups: vec2<u32>, half: u32) -> buf_Item {
    return buf_Item(buf_sixteen(8u * groups.x + 4u * half), buf_sixteen(8u * groups.y + 4u * half));
}

fn buf_sixteen(at: u32) -> array<vec4<f32>, 4> {
    return array<vec4<f32>, 4>(
        weights_load4(at), weights_load4(at + 1u), weights_load4(at + 2u), weights_load4(at + 3u),
    );
}

struct buf_Half { first: array<vec4<f32>, 4>, second: array<vec4<f32>, 4>, by: vec2<f32>, scale: vec2<f32> }
struct buf_Four { first: vec4<f16>, second: vec4<f16> }

fn buf_half(item: buf_Item, groups: vec2<u32>, g: u32, half: u32) -> buf_Half {
    let powers = vec2<u32>(buf_power(item.first), buf_power(item.second));
    let by = bitcast<vec2<f32>>(vec2<u32>(0x7f000000u) - powers);
    return buf_Half(item.first, item.second, by, bitcast<vec2<f32>>(powers));
}

// The bits of the largest power of two that is not above the largest magnitude.
fn buf_power(values: array<vec4<f32>, 4>) -> u32 {
    let most = max(max(abs(values[0]), abs(values[1])), max(abs(values[2]), abs(values[3])));
    return min(bitcast<u32>(max(max(most.x, most.y), max(most.z, most.w))) & 0x7f800000u, 0x7e800000u);
}

fn buf_four(rows: buf_Half, q: u32) -> buf_Four {
    return buf_Four(vec4<f16>(rows.first[q] * rows.by.x), vec4<f16>(rows.second[q] * rows.by.y));
}
