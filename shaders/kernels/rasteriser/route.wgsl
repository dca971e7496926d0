// As route.wgsl, but a thread a token, which keeps the best so far in their order: for devices whose
// threads run one after another.
// @import lib/index/grid
// @import lib/experts/route

const WG: u32 = 8u;

@group(0) @binding(0) var<uniform> params: Params;

var<private> keys: array<u32, PLACES>;
var<private> experts: array<u32, PLACES>;
var<private> groups_keys: array<u32, MOST_GROUPS>;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let token = grid_index(id, groups, WG);
    if token >= params.rows {
        return;
    }
    let row = told_row(params.x_offset + token * params.experts);
    for (var i = 0u; i < params.k; i++) {
        keys[i] = 0u; // below that of any number
    }
    if GROUPS_USED < GROUPS {
        tell_groups(row);
    }
    for (var e = 0u; e < params.experts; e++) {
        let own = key_in_group(row, e);
        if own > keys[params.k - 1u] {
            insert(e, own);
        }
    }
    let first = score(row, experts[0]);
    var total = 0.0;
    for (var i = 0u; i < params.k; i++) {
        total += raised(score(row, experts[i]), first);
    }
    for (var i = 0u; i < params.k; i++) {
        let chosen = experts[i];
        ids[token * params.k + i] = i32(chosen);
        y[token * params.k + i] = weight(i32(chosen), raised(score(row, chosen), first), first, total);
    }
}

fn told_row(start: u32) -> Row {
    var row = Row(start, 0.0, 0.0);
    if SCORES == BY_SOFTMAX {
        row.shift = largest_logit(row, 0u, 1u);
        row.inverse = 1.0 / sum_of_exp(row, 0u, 1u);
    }
    return row;
}

fn tell_groups(row: Row) {
    let each = params.experts / GROUPS;
    for (var g = 0u; g < GROUPS; g++) {
        var best = vec2<u32>();
        for (var e = g * each; e < (g + 1u) * each; e++) {
            best = with_key(best, key(e, score(row, e)));
        }
        groups_keys[g] = key_of_group(best, each);
    }
}

fn key_in_group(row: Row, expert: u32) -> u32 {
    if GROUPS_USED < GROUPS {
        let group = expert / (params.experts / GROUPS);
        let own = groups_keys[group];
        var place = 0u;
        for (var g = 0u; g < GROUPS; g++) {
            let other = groups_keys[g];
            place += u32(other > own || (other == own && g < group));
        }
        if place >= GROUPS_USED {
            return SHUT;
        }
    }
    return key(expert, score(row, expert));
}

// Put an expert behind those whose keys are as large.
fn insert(expert: u32, own: u32) {
    var place = params.k - 1u;
    while place > 0u && keys[place - 1u] < own {
        keys[place] = keys[place - 1u];
        experts[place] = experts[place - 1u];
        place -= 1u;
    }
    keys[place] = own;
    experts[place] = expert;
}
