// As route.wgsl, but a thread a token, which keeps the best so far in their order: for devices whose
// threads run one after another.
// @import lib/index/grid
// @import lib/experts/route

const WG: u32 = 8u;

@group(0) @binding(0) var<uniform> params: Params;

var<private> keys: array<u32, PLACES>;
var<private> experts: array<u32, PLACES>;

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
    for (var e = 0u; e < params.experts; e++) {
        let own = key(e, score(row, e));
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
        y[token * params.k + i] = weight(raised(score(row, chosen), first), first, total);
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
