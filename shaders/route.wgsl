// ids[t, :] = experts with the k largest scores of a token, the largest first, of equal ones the lower
// id; y[t, :] = their weights. A work group a token: an expert's place is how many come before it.
// @import load/f32 as x
// @import load/f32 as bias
// @import lib/grid
// @import lib/reduce
// @import lib/route

const WG: u32 = 64u;
const EXPERTS: u32 = 512u;
const PLACES: u32 = 32u;

struct Params { rows: u32, experts: u32, k: u32, factor: f32, x_offset: u32, bias_offset: u32 }

@group(0) @binding(0) var<storage, read_write> ids: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

var<workgroup> keys: array<u32, EXPERTS>;
var<workgroup> scores: array<f32, PLACES>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let token = group_index(group, groups);
    if token >= params.rows {
        return;
    }
    let row = told_row(params.x_offset + token * params.experts, lane);
    for (var e = lane; e < params.experts; e += WG) {
        keys[e] = key(e, score(row, e));
    }
    workgroupBarrier();
    for (var e = lane; e < params.experts; e += WG) {
        let place = place_of(e);
        if place < params.k {
            scores[place] = score(row, e);
            ids[token * params.k + place] = i32(e);
        }
    }
    workgroupBarrier();
    let first = scores[0];
    var total = 0.0;
    for (var i = 0u; i < params.k; i++) {
        total += raised(scores[i], first);
    }
    for (var i = lane; i < params.k; i += WG) {
        y[token * params.k + i] = weight(raised(scores[i], first), first, total);
    }
}

fn told_row(start: u32, lane: u32) -> Row {
    var row = Row(start, 0.0, 0.0);
    if SCORES == BY_SOFTMAX {
        var largest = LOWEST;
        for (var e = lane; e < params.experts; e += WG) {
            largest = max(largest, comparable(logit(row, e)));
        }
        row.shift = group_max(largest, lane);
        var sum = 0.0;
        for (var e = lane; e < params.experts; e += WG) {
            sum += exp(logit(row, e) - row.shift);
        }
        row.inverse = 1.0 / group_sum(sum, lane);
    }
    return row;
}

fn place_of(expert: u32) -> u32 {
    let own = keys[expert];
    var place = 0u;
    for (var e = 0u; e < params.experts; e++) {
        let other = keys[e];
        place += u32(other > own || (other == own && e < expert));
    }
    return place;
}
