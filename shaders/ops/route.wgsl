// ids[t, :] = experts with the k largest scores of a token, the largest first, of equal ones the lower
// id; y[t, :] = their weights. A work group a token: an expert's place is how many come before it.
// @import lib/index/group_row
// @import lib/reduce/reduce
// @import lib/experts/route

const EXPERTS: u32 = 512u;

var<workgroup> keys: array<u32, EXPERTS>;
var<workgroup> scores: array<f32, PLACES>;

fn group_row(token: u32, lane: u32) {
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
        row.shift = group_max(largest_logit(row, lane, WG), lane);
        row.inverse = 1.0 / group_sum(sum_of_exp(row, lane, WG), lane);
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
