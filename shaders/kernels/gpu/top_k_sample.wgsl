// The largest of what parts of a row left, and the token that a random number falls on among them, as
// top_k.wgsl and sample.wgsl make them one after the other. A work group a row, and a thread a candidate:
// each adds up, in integers, what those before it weigh, which all threads read at the same time.
// @import kernels/gpu/lib/largest
// @import lib/sampling/sampling_params
// @import lib/sampling/draw_weights

const WG: u32 = 256u;            // at least as many as candidates

struct Params {
    cols: u32, k: u32, length: u32, x_offset: u32, ids_offset: u32, sampling_offset: u32,
    draws_offset: u32, places: u32,
}

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> ids: array<i32>;
@group(0) @binding(2) var<storage, read> sampling: array<f32>;
@group(0) @binding(3) var<storage, read> draws: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<i32>;
@group(0) @binding(5) var<uniform> params: Params;

var<workgroup> tokens: array<u32, WG>;
var<workgroup> plain: array<u32, WG>;
var<workgroup> tempered: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = params.x_offset + group.y * params.cols;
    var items: Items;
    // @unroll
    for (var i = 0u; i < ITEMS; i++) {
        let place_i = i * WG + lane;
        let at_i = params.ids_offset + group.y * params.length + min(place_i, params.length - 1u);
        let id_i = u32(ids[at_i]);
        let key_i = key_of_bits(x[row + min(id_i, params.cols - 1u)]);
        items.ids[i] = id_i;
        items.keys[i] = select(0u, key_i, place_i < params.length && id_i < params.cols);
    }
    let count = collect_largest(&items, lane);
    for (var i = lane; i < count; i += WG) {
        let rank = rank_of(i, count);
        if rank < params.k {
            tokens[rank] = collected[i].y;
        }
    }
    workgroupBarrier();
    let base = params.sampling_offset + group.y * SAMPLING;
    let candidates = min(count, min(params.k, u32(sampling[base + TOP_K])));
    draw(row, group.y, lane, candidates, base);
}

// The gap of a candidate to the largest logit; a token ruled out has one that weighs nothing.
fn gap_of(row: u32, lane: u32) -> f32 {
    let value = x[row + tokens[lane]];
    let gap = bitcast<f32>(x[row + tokens[0]]) - bitcast<f32>(value);
    return select(gap, 3.4e38, value == MINUS_INFINITY);
}

fn draw(row: u32, place: u32, lane: u32, candidates: u32, base: u32) {
    let there = lane < candidates;
    var gap = 3.4e38;
    if there {
        gap = gap_of(row, lane);
        plain[lane] = weight(gap * LOG2_E);
    }
    workgroupBarrier();
    var before = 0u;
    var total = 0u;
    for (var i = 0u; i < candidates; i++) {
        before += select(0u, plain[i], i < lane);
        total += plain[i];
    }
    // The first that gets to the share of top_p is kept, and whatever is within the gap of min_p.
    let share = sampling[base + TOP_P];
    let wanted = multiply_high(total, u32(min(share, 1.0) * 16777216.0) << 8u);
    let kept = lane == 0u || ((share >= 1.0 || before < wanted) && gap <= sampling[base + GAP]);
    var own = 0u;
    if there {
        own = select(0u, weight(gap * sampling[base + SHARPNESS]), kept);
        tempered[lane] = own;
    }
    workgroupBarrier();
    var reached = 0u;
    var all = 0u;
    for (var i = 0u; i < candidates; i++) {
        reached += select(0u, tempered[i], i < lane);
        all += tempered[i];
    }
    let at = multiply_high(all, draws[params.draws_offset + 2u * place]);
    let top = x[row + tokens[0]];
    let finite = candidates > 0u && (top & 0x7f800000u) != 0x7f800000u;
    let chosen = there && reached <= at && at - reached < own;
    let into = draws[params.draws_offset + 2u * place + 1u];
    if into < params.places && select(lane == 0u, chosen, finite) {
        y[into] = select(-1, i32(tokens[lane]), finite);
    }
}
