// Rows of a tile over plain keys and values, as kernels of tiles take them: a row is a query head of one token,
// those of a head of keys follow each other, then those of the next token, then those of the next batch.
// @import formats/load/f32 as mask
// @import formats/load/f32 as sinks
// @import lib/attention/plain_keys

const ALIBI: bool = false;
const BIASED: bool = MASKED && !TRUTHS;
const LARGEST_BIAS: f32 = 1e38;  // scores with it are numbers
const LOWEST: f32 = -3.4028234e38;

// Neighbouring tokens of one batch, and the positions that any of them sees.
struct Run { batch: u32, end: u32, seen: vec2<u32> }

// Tiles of the dispatches before this one, which share the rows.
fn first_group() -> u32 {
    return params.first_group_y;
}

// The tokens from `begin` on, before `limit`, that are of its batch.
fn run_from(begin: u32, limit: u32) -> Run {
    let batch = begin / params.tokens;
    let end = min(limit, (batch + 1u) * params.tokens);
    return Run(batch, end, vec2<u32>(seen_by(begin).x, seen_by(end - 1u).y));
}

fn seen_by(token: u32) -> vec2<u32> {
    let own = token % params.tokens;
    let low = seen_from(own);
    return vec2<u32>(low, max(seen_until(own), low));
}

// Positions that a row sees: none if it is beyond the tile, or its token of another batch.
fn seen_in(run: Run, row: u32, last: u32) -> vec2<u32> {
    let token = row / params.group;
    let apart = row >= last || token / params.tokens != run.batch || token >= run.end;
    return select(seen_by(token), vec2<u32>(0u), apart);
}

// The first block of `size` positions that a split takes, at `begin` or behind it; see paged.
fn first_in_turn(begin: u32, split: u32, size: u32) -> u32 {
    let block = begin / size;
    return (block + (split + params.splits - block % params.splits) % params.splits) * size;
}

// Where a position's key and value begin, in vectors of four.
fn places_of(run: Run, position: u32, kv_head: u32) -> vec2<u32> {
    let k_way = vec3<u32>(run.batch, position, kv_head) * params.k_strides.xyz;
    let v_way = vec3<u32>(run.batch, position, kv_head) * params.v_strides.xyz;
    let first = vec2<u32>(params.k_offset, params.v_offset);
    return (first + vec2<u32>(k_way.x + k_way.y + k_way.z, v_way.x + v_way.y + v_way.z)) / 4u;
}

fn head_of(row: u32, kv_head: u32) -> u32 {
    return kv_head * params.group + row % params.group;
}

fn query_of(row: u32, kv_head: u32) -> u32 {
    let token = row / params.group;
    let at = vec3<u32>(token / params.tokens, token % params.tokens, head_of(row, kv_head));
    let way = at * params.q_strides.xyz;
    return params.q_offset + way.x + way.y + way.z;
}

fn query_factor(row: u32) -> f32 {
    return params.scale;
}

fn biased(score: f32, row: u32, kv_head: u32, position: u32) -> f32 {
    if !BIASED {
        return score;
    }
    return score + clamp(mask_at(row, kv_head, position), -LARGEST_BIAS, LARGEST_BIAS);
}

fn is_shown(row: u32, kv_head: u32, position: u32) -> bool {
    if !MASKED {
        return true;
    }
    return shows(mask_at(row, kv_head, position));
}

// The mask of a score; positions beyond the keys, which no row sees, have that of the last.
fn mask_at(row: u32, kv_head: u32, position: u32) -> f32 {
    let token = row / params.group;
    let at = mask_of(token / params.tokens, head_of(row, kv_head), token % params.tokens);
    return f32(mask_load(at + min(position, params.keys - 1u) * params.mask_strides.w));
}

fn sink_of(row: u32, kv_head: u32) -> f32 {
    return max(f32(sinks_load(params.sinks_offset + head_of(row, kv_head))), LOWEST);
}

// In vectors of four, see plain_keys.
fn row_place(row: u32, kv_head: u32, split: u32) -> u32 {
    let token = row / params.group;
    return place_of(token / params.tokens, token % params.tokens, head_of(row, kv_head), split) / 4u;
}

fn scale_of(total: f32) -> f32 {
    return factor_of(total);
}
