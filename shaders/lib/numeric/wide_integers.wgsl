// Arithmetic of 64 bits on pairs of words, the low one first, modulo 2⁶⁴.

const SIGNED: bool = true;

fn wide_sum(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

fn wide_difference(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

fn wide_negative(a: vec2<u32>) -> vec2<u32> {
    return wide_difference(vec2<u32>(0u), a);
}

fn wide_product(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let half = vec2<u32>(a.x & 0xffffu, a.x >> 16u);
    let other = vec2<u32>(b.x & 0xffffu, b.x >> 16u);
    let first = half.y * other.x;
    let second = half.x * other.y;
    let middle = ((half.x * other.x) >> 16u) + (first & 0xffffu) + (second & 0xffffu);
    let high = half.y * other.y + (first >> 16u) + (second >> 16u) + (middle >> 16u);
    return vec2<u32>(a.x * b.x, high + a.x * b.y + a.y * b.x);
}

fn wide_is_negative(a: vec2<u32>) -> bool {
    return SIGNED && a.y > 0x7fffffffu;
}

fn wide_below(a: vec2<u32>, b: vec2<u32>) -> bool {
    let flipped = select(0u, 0x80000000u, SIGNED);
    let left = a.y ^ flipped;
    let right = b.y ^ flipped;
    return left < right || (left == right && a.x < b.x);
}

fn wide_magnitude(a: vec2<u32>) -> vec2<u32> {
    return select(a, wide_negative(a), wide_is_negative(a));
}

fn wide_shifted_left(a: vec2<u32>, count: u32) -> vec2<u32> {
    if count == 0u {
        return a;
    }
    if count < 32u {
        return vec2<u32>(a.x << count, (a.y << count) | (a.x >> (32u - count)));
    }
    return vec2<u32>(0u, a.x << min(count - 32u, 31u));
}

// The upper word is filled with zeros or, of negative numbers, with ones.
fn wide_shifted_right(a: vec2<u32>, count: u32) -> vec2<u32> {
    let fill = select(0u, 0xffffffffu, wide_is_negative(a));
    if count == 0u {
        return a;
    }
    if count < 32u {
        let moved = 32u - count;
        return vec2<u32>((a.x >> count) | (a.y << moved), (a.y >> count) | (fill << moved));
    }
    if count == 32u {
        return vec2<u32>(a.y, fill);
    }
    let rest = min(count - 32u, 31u);
    return vec2<u32>((a.y >> rest) | (fill << (32u - rest)), fill);
}
