// Attention over plain keys and values, (batch, position, head, column): what a token sees of them,
// and where its results lie. The importing file has `params`. Functions have a single return where
// barriers depend on their results, or D3D12's compiler refuses them.

const MASKED: bool = false;
const TRUTHS: bool = false;      // the mask says what is seen; otherwise it is added to scores
const SINKS: bool = false;
const CAUSAL: bool = false;
const CAPPED: bool = false;

// `group` heads of queries share one of keys, which makes `rows` of a batch; a tile has `step`.
struct Params {
    tokens: u32, keys: u32, heads: u32, group: u32, rows: u32, step: u32, splits: u32, k_cols: u32,
    v_cols: u32, k_vec4s: u32, v_vec4s: u32, window: u32, scale: f32, softcap: f32, q_offset: u32,
    k_offset: u32, v_offset: u32, mask_offset: u32, sinks_offset: u32, q_strides: vec4<u32>,
    k_strides: vec4<u32>, v_strides: vec4<u32>, mask_strides: vec4<u32>, first_group_y: u32,
}

// Tokens are the last of the positions: with 2 of 5 keys' worth of them, the first is position 3.
fn seen_until(token: u32) -> u32 {
    let seen = u32(clamp(i32(token + 1u + params.keys) - i32(params.tokens), 0, i32(params.keys)));
    return select(params.keys, seen, CAUSAL);
}

fn seen_from(token: u32) -> u32 {
    let first = max(i32(token + 1u + params.keys) - i32(params.tokens) - i32(params.window), 0);
    return select(u32(first), 0u, params.window == 0u);
}

// The share that one split takes of the keys that a tile's tokens see, in whole steps.
fn range_of(first: u32, last: u32, split: u32, step: u32) -> vec2<u32> {
    let low = seen_from(first);
    let high = max(seen_until(last), low);
    let all = params.splits * step;
    let share = (high - low + all - 1u) / all * step;
    return min(vec2<u32>(low) + vec2<u32>(split, split + 1u) * share, vec2<u32>(high));
}

fn mask_of(batch: u32, head: u32, token: u32) -> u32 {
    let at = vec3<u32>(batch, head, token) * params.mask_strides.xyz;
    return params.mask_offset + at.x + at.y + at.z;
}

fn shows(mask: f32) -> bool {
    if TRUTHS {
        return mask != 0.0;
    }
    // By its bits, because an implementation may assume that nothing is infinite.
    return bitcast<u32>(mask) != 0xff800000u;
}

fn masked(score: f32, mask: f32) -> f32 {
    if TRUTHS {
        return score;
    }
    return score + mask;
}

// The clamp changes no value, but some drivers' tanh overflows to NaN beyond 44.
fn capped(score: f32) -> f32 {
    if !CAPPED {
        return score;
    }
    return params.softcap * tanh(clamp(score / params.softcap, -20.0, 20.0));
}

// A split writes its sums and then (largest, total, 0, 0); a whole result is divided by its total.
fn place_of(batch: u32, token: u32, head: u32, split: u32) -> u32 {
    let width = params.v_cols + select(0u, 4u, params.splits > 1u);
    return (((batch * params.tokens + token) * params.heads + head) * params.splits + split) * width;
}

// A token that sees nothing has no sum either.
fn factor_of(total: f32) -> f32 {
    return select(select(1.0 / total, 0.0, total == 0.0), 1.0, params.splits > 1u);
}
