// Scores of experts, and weights of the chosen ones: what the kernels of a router share.
// @import formats/load/f32 as x
// @import formats/load/f32 as bias
// @import lib/linear/no_bias as scales
// @import lib/experts/groups

const SCORES: u32 = 1u;
const WEIGHTS: u32 = 1u;
const BIASED: bool = false;
const SCALED: bool = false;
// Forms of scores and of weights; the op has the same numbers.
const AS_THEY_ARE: u32 = 0u;
const BY_SOFTMAX: u32 = 1u;
const BY_SIGMOID: u32 = 2u;
const BY_SUM: u32 = 3u;
const LOWEST: f32 = -3.4028234e38;
const PLACES: u32 = 32u; // for the chosen of a token

struct Params {
    rows: u32, experts: u32, k: u32, factor: f32, inner: f32, x_offset: u32, bias_offset: u32,
    scales_offset: u32,
}

@group(0) @binding(0) var<storage, read_write> ids: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

// What makes scores of a row: the largest value and the inverse of the sum.
struct Row { start: u32, shift: f32, inverse: f32 }

fn logit(row: Row, expert: u32) -> f32 {
    return x_load(row.start + expert) * params.inner;
}

// A value to be compared with `max`, which may pass over NaN: that becomes infinity.
fn comparable(value: f32) -> f32 {
    let bits = bitcast<u32>(value);
    return bitcast<f32>(select(bits, 0x7f800000u, (bits & 0x7fffffffu) > 0x7f800000u));
}

// Largest logit of every `step`-th expert from `first` on.
fn largest_logit(row: Row, first: u32, step: u32) -> f32 {
    var largest = LOWEST;
    for (var e = first; e < params.experts; e += step) {
        largest = max(largest, comparable(logit(row, e)));
    }
    return largest;
}

// Sum over the same experts of what softmax divides by that of all.
fn sum_of_exp(row: Row, first: u32, step: u32) -> f32 {
    var sum = 0.0;
    for (var e = first; e < params.experts; e += step) {
        sum += exp(logit(row, e) - row.shift);
    }
    return sum;
}

// NaN where the number that others are relative to is infinite or NaN itself. By bits, as drivers
// make numbers of NaN.
fn nan_unless_finite(value: f32, reference: f32) -> f32 {
    let bits = bitcast<u32>(reference);
    let lost = (bits & 0x7f800000u) == 0x7f800000u;
    return bitcast<f32>(select(bitcast<u32>(value), bits | 0x400000u, lost));
}

fn score(row: Row, expert: u32) -> f32 {
    let value = logit(row, expert);
    if SCORES == BY_SOFTMAX {
        return nan_unless_finite(exp(value - row.shift) * row.inverse, row.shift);
    }
    if SCORES == BY_SIGMOID {
        let is_nan = (bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u;
        return select(1.0 / (1.0 + exp(-value)), value, is_nan);
    }
    return value;
}

// The key by which experts are chosen.
fn key(expert: u32, score: f32) -> u32 {
    if BIASED {
        return key_of_f32(score + bias_load(params.bias_offset + expert));
    }
    return key_of_f32(score);
}

// Weight of a chosen expert before the division by the sum of those.
fn raised(score: f32, first: f32) -> f32 {
    return select(score, exp(score - first), WEIGHTS == BY_SOFTMAX);
}

fn weight(expert: i32, raised: f32, first: f32, total: f32) -> f32 {
    var factor = params.factor;
    if SCALED {
        factor *= scales_load(params.scales_offset + u32(expert));
    }
    if WEIGHTS == BY_SOFTMAX {
        return nan_unless_finite(raised / total, first) * factor;
    }
    return select(raised, raised / total, WEIGHTS == BY_SUM) * factor;
}
