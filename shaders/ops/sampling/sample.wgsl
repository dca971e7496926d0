// y[row] = the token that a random number falls on, among candidates cut by top_k, top_p and min_p;
// -1 where the largest logit is not finite. One work group a row: its threads turn logits into
// integer weights, then one of them adds up, in order, at most 256 numbers. PLACED: a row's token
// goes to the slot that stands behind its random number, if there is such a slot.
//
// From the fixed-point distance between two logits on, all is integer arithmetic, so that every
// device and `wgpu_backend.ops.sampling.host` pick the same token; the reasons are in
// `wgpu_backend/ops/sampling/host/weights.py`.
// @import lib/sampling/sampling_params
// @import lib/sampling/draw_weights

const WG: u32 = 64u;
const PLACED: bool = false;
const MOST: u32 = 256u;

struct Params {
    cols: u32, candidates: u32, x_offset: u32, ids_offset: u32, sampling_offset: u32,
    draws_offset: u32, slots: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> ids: array<i32>;
@group(0) @binding(2) var<storage, read> sampling: array<f32>;
@group(0) @binding(3) var<storage, read> draws: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<i32>;
@group(0) @binding(5) var<uniform> params: Params;

var<workgroup> gaps: array<f32, MOST>;
var<workgroup> plain: array<u32, MOST>;
var<workgroup> tempered: array<u32, MOST>;

// Candidates that together reach a share of the plain weights: the first that gets there is kept.
fn kept_by_top_p(count: u32, share: f32) -> u32 {
    if share >= 1.0 {
        return count;
    }
    var total = 0u;
    for (var i = 0u; i < count; i++) {
        total += plain[i];
    }
    let wanted = multiply_high(total, u32(share * 16777216.0) << 8u);
    var reached = plain[0];
    var kept = 1u;
    while kept < count && reached < wanted {
        reached += plain[kept];
        kept += 1u;
    }
    return kept;
}

fn kept_by_min_p(count: u32, gap: f32) -> u32 {
    var kept = 1u;
    while kept < count && gaps[kept] <= gap {
        kept += 1u;
    }
    return kept;
}

fn fallen_on(count: u32, draw: u32) -> u32 {
    var total = 0u;
    for (var i = 0u; i < count; i++) {
        total += tempered[i];
    }
    let at = multiply_high(total, draw);
    var reached = tempered[0];
    var place = 0u;
    while place + 1u < count && reached <= at {
        place += 1u;
        reached += tempered[place];
    }
    return place;
}

fn put(row: u32, token: i32) {
    if !PLACED {
        y[row] = token;
        return;
    }
    let slot = draws[params.draws_offset + 2u * row + 1u];
    if slot < params.slots {
        y[slot] = token;
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = params.x_offset + group.y * params.cols;
    let first = params.ids_offset + group.y * params.candidates;
    let base = params.sampling_offset + group.y * SAMPLING;
    let top = x[row + min(u32(ids[first]), params.cols - 1u)];
    for (var i = lane; i < params.candidates; i += WG) {
        let id = u32(ids[first + i]);
        let value = x[row + min(id, params.cols - 1u)];
        // A token ruled out, or an empty place: no arithmetic with infinities.
        let out = id >= params.cols || bitcast<u32>(value) == MINUS_INFINITY;
        let gap = select(top - value, 3.4e38, out);
        gaps[i] = gap;
        plain[i] = weight(gap * LOG2_E);
        tempered[i] = weight(gap * sampling[base + SHARPNESS]);
    }
    workgroupBarrier();
    if lane > 0u {
        return;
    }
    if (bitcast<u32>(top) & 0x7f800000u) == 0x7f800000u {
        put(group.y, -1);
        return;
    }
    var count = min(params.candidates, u32(sampling[base + TOP_K]));
    count = kept_by_top_p(count, sampling[base + TOP_P]);
    count = kept_by_min_p(count, sampling[base + GAP]);
    let draw = draws[params.draws_offset + group.y * select(1u, 2u, PLACED)];
    put(group.y, ids[first + fallen_on(count, draw)]);
}
