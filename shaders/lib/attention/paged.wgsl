// Where positions of a paged cache lie, and which of them rows of an attention see. A row is a query
// head of one token; those of a cache head's group follow each other, then those of the next token.
//
// Position j of sequence s lies in row table[s, j / BLOCK] · BLOCK + j mod BLOCK of the cache. The
// importing file has `positions_load`, `sequences_load`, `q_load` and `params`. Functions have a
// single return: D3D12's compiler refuses barriers that depend on the result of a function with
// several.
// @import formats/load/i32 as table
// @import formats/load/i32 as ends
// @import formats/load/f32 as sinks
// @import formats/load/f32 as bias

const CAUSAL: bool = true;       // tokens see at least what is before them
const CHUNKED: bool = false;     // of what is before them, what lies in the same chunk of positions
const ENDED: bool = false;       // tokens see up to a position that is given
const AROUND: bool = false;      // of that, what is no further than half a window away
const CAPPED: bool = false;
const ALIBI: bool = false;       // scores fall with the distance, by a slope of each head
const BIASED: bool = false;      // scores have a bias of each head and distance
const TEMPERED: bool = false;    // queries grow with their position
const SINKS: bool = false;       // heads have a further score, which has no value
const SHARED: bool = false;      // values are the first columns of keys
const LOWEST: f32 = -3.4028234e38;

struct Params {
    heads: u32, kv_heads: u32, group: u32, block: u32, rows: u32, step: u32, splits: u32, k_vec4s: u32, v_vec4s: u32,
    table_width: u32, table_rows: u32, k_rows: u32, window: u32, q_offset: u32, q_token_stride: u32,
    q_head_stride: u32, positions_offset: u32, positions_stride: u32, sequences_offset: u32,
    sequences_stride: u32, table_offset: u32, scale: f32, softcap: f32, eps: f32, chunk: u32, half_window: u32,
    ends_offset: u32, ends_stride: u32, sinks_offset: u32, bias_offset: u32, bias_reach: u32, alibi_heads: u32,
    alibi: f32, temper: f32, temper_length: u32, temper_offset: u32,
}

// Neighbouring tokens of one sequence, and the positions that any of them sees.
struct Run { sequence: u32, begin: u32, end: u32, seen: vec2<u32> }

// The tokens from `begin` on, before `limit`, that are of its sequence.
fn run_from(begin: u32, limit: u32) -> Run {
    var run = Run(sequence_of(begin), begin, begin + 1u, seen_by(begin));
    while run.end < limit {
        if sequence_of(run.end) != run.sequence {
            break;
        }
        let also = seen_by(run.end);
        // A token that sees nothing widens nothing.
        if run.seen.x == run.seen.y {
            run.seen = also;
        } else if also.x < also.y {
            run.seen = vec2<u32>(min(run.seen.x, also.x), max(run.seen.y, also.y));
        }
        run.end++;
    }
    return run;
}

fn sequence_of(token: u32) -> u32 {
    let sequence = u32(max(sequences_load(params.sequences_offset + token * params.sequences_stride), 0));
    return min(sequence, params.table_rows - 1u);
}

fn position_of(token: u32) -> i32 {
    return positions_load(params.positions_offset + token * params.positions_stride);
}

// Positions that a token sees, first and one past the last. Those beyond the table, like blocks
// beyond the cache, are a caller's mistake that reads something wrong but nothing outside.
fn seen_by(token: u32) -> vec2<u32> {
    let wanted = u32(max(position_of(token) + 1, 0));
    let end = min(wanted, params.table_width * params.block);
    var seen = vec2<u32>(select(0u, end - params.window, params.window > 0u && end > params.window), end);
    if CHUNKED && end > 0u {
        seen.x = max(seen.x, (end - 1u) / params.chunk * params.chunk);
    }
    if ENDED && wanted > 0u {
        seen = until(seen, end_of(token), wanted - 1u);
    }
    return seen;
}

// What a token at this position sees that has a past, and sees up to an end.
fn until(past: vec2<u32>, end: u32, position: u32) -> vec2<u32> {
    var seen = vec2<u32>(past.x, max(past.y, end));
    if !CAUSAL {
        let low = select(0u, position - params.half_window, AROUND && position > params.half_window);
        let high = select(end, min(end, position + params.half_window + 1u), AROUND);
        seen = vec2<u32>(min(low, high), high);
    }
    return seen;
}

fn end_of(token: u32) -> u32 {
    let end = u32(max(ends_load(params.ends_offset + token * params.ends_stride) + 1, 0));
    return min(end, params.table_width * params.block);
}

// Positions that a row sees: none if it is beyond the tile, or its token of another run.
fn seen_in(run: Run, row: u32, last: u32) -> vec2<u32> {
    let token = row / params.group;
    let apart = row >= last || token < run.begin || token >= run.end;
    let seen = seen_by(select(token, run.begin, apart));
    return select(seen, vec2<u32>(0u), apart);
}

// The share of a token's positions that one split takes.
fn part_of(range: vec2<u32>, split: u32) -> vec2<u32> {
    let share = (range.y - range.x + params.splits - 1u) / params.splits;
    let first = min(range.x + split * share, range.y);
    return vec2<u32>(first, min(first + share, range.y));
}

// The first block of `size` positions that a split takes, at `begin` or behind it: splits take blocks in
// turn. Which split adds what to a row depends on positions alone, and not on the tokens that share
// its tile, which begin and end elsewhere.
fn first_in_turn(begin: u32, split: u32, size: u32) -> u32 {
    let block = begin / size;
    return (block + (split + params.splits - block % params.splits) % params.splits) * size;
}

fn cache_row(sequence: u32, position: u32) -> u32 {
    let block = position / params.block;
    let at = params.table_offset + sequence * params.table_width + block;
    let inside = position - block * params.block;
    return min(u32(table_load(at)) * params.block + inside, params.k_rows - 1u);
}

// Where the value begins that belongs to a key, `slot` being a head of a row of the cache.
fn value_at(slot: u32) -> u32 {
    return slot * select(params.v_vec4s, params.k_vec4s, SHARED);
}

fn head_of(row: u32, kv_head: u32) -> u32 {
    return kv_head * params.group + row % params.group;
}

fn query_of(row: u32, kv_head: u32) -> u32 {
    let token = row / params.group;
    return params.q_offset + token * params.q_token_stride + head_of(row, kv_head) * params.q_head_stride;
}

// What the values of a row's query are multiplied with.
fn query_factor(row: u32) -> f32 {
    if !TEMPERED {
        return params.scale;
    }
    let position = u32(max(position_of(row / params.group), 0));
    let steps = (position + params.temper_offset) / params.temper_length;
    return params.scale * (1.0 + params.temper * log(1.0 + f32(steps)));
}

// A score, and what its row adds to it for the distance of a position.
fn biased(score: f32, row: u32, kv_head: u32, position: u32) -> f32 {
    if !(ALIBI || BIASED) {
        return score;
    }
    let head = head_of(row, kv_head);
    let apart = i32(position) - position_of(row / params.group);
    var sum = score;
    if ALIBI {
        sum -= slope_of(head) * f32(abs(apart));
    }
    if BIASED {
        let reach = i32(params.bias_reach);
        let at = head * (2u * params.bias_reach + 1u) + u32(clamp(apart, -reach, reach) + reach);
        sum += bias_load(params.bias_offset + at);
    }
    return sum;
}

// Slopes fall by powers; heads beyond a power of two have those between.
fn slope_of(head: u32) -> f32 {
    let between = f32(head - params.alibi_heads) + 0.5;
    return exp2(params.alibi * select(between, f32(head + 1u), head < params.alibi_heads));
}

fn sink_of(row: u32, kv_head: u32) -> f32 {
    return max(sinks_load(params.sinks_offset + head_of(row, kv_head)), LOWEST);
}

// The clamp changes no value, but some drivers' tanh overflows to NaN beyond 44.
fn capped(score: f32) -> f32 {
    if !CAPPED {
        return score;
    }
    return params.softcap * tanh(clamp(score / params.softcap, -20.0, 20.0));
}

// A split writes its sums and then (largest, total); a whole row is divided by its total.
fn place_of(row: u32, kv_head: u32, split: u32) -> u32 {
    let width = params.v_vec4s + select(0u, 1u, params.splits > 1u);
    let at = (row / params.group) * params.heads + head_of(row, kv_head);
    return (at * params.splits + split) * width;
}

fn scale_of(total: f32) -> f32 {
    return select(1.0 / max(total, 1e-37), 1.0, params.splits > 1u);
}
