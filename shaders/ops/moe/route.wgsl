// ids[t, :] = experts with the k largest scores of a token, the largest first, of equal ones the lower
// id; y[t, :] = their weights. A work group a token: an expert's place is how many come before it.
// @import lib/index/group_row
// @import lib/reduce/reduce
// @import lib/experts/route

const EXPERTS: u32 = 512u;

var<workgroup> keys: array<u32, EXPERTS>;
var<workgroup> scores: array<f32, PLACES>;
var<workgroup> chosen: array<i32, PLACES>;
var<workgroup> groups_keys: array<u32, MOST_GROUPS>;

fn group_row(token: u32, lane: u32) {
    let row = told_row(params.x_offset + token * params.experts, lane);
    for (var e = lane; e < params.experts; e += WG) {
        keys[e] = key(e, score(row, e));
    }
    workgroupBarrier();
    if GROUPS_USED < GROUPS {
        shut_groups(lane);
    }
    for (var e = lane; e < params.experts; e += WG) {
        let place = place_of(e);
        if place < params.k {
            scores[place] = score(row, e);
            chosen[place] = i32(e);
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
        y[token * params.k + i] = weight(chosen[i], raised(scores[i], first), first, total);
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

fn shut_groups(lane: u32) {
    let each = params.experts / GROUPS;
    for (var g = lane; g < GROUPS; g += WG) {
        var best = vec2<u32>();
        for (var e = g * each; e < (g + 1u) * each; e++) {
            best = with_key(best, keys[e]);
        }
        groups_keys[g] = key_of_group(best, each);
    }
    workgroupBarrier();
    for (var e = lane; e < params.experts; e += WG) {
        if place_of_group(e / each) >= GROUPS_USED {
            keys[e] = SHUT;
        }
    }
    workgroupBarrier();
}

fn place_of_group(group: u32) -> u32 {
    let own = groups_keys[group];
    var place = 0u;
    for (var g = 0u; g < GROUPS; g++) {
        let other = groups_keys[g];
        place += u32(other > own || (other == own && g < group));
    }
    return place;
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
