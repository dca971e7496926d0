// Softmax of clusters of lanes, each of which has seen other keys: a running maximum, and sums that are
// rescaled when it moves. The importing file has ROWS, KEYS, V_VEC4S, CLUSTERS, LOG2_E, what lib/attention/paged and
// lib/cluster have, and as `sums` how values are added up.
// @import kernels/gpu/lib/missing

const WEIGHTS: u32 = CLUSTERS * KEYS * ROWS;

var<workgroup> largest: array<f32, CLUSTERS * ROWS>;
var<workgroup> totals: array<f32, CLUSTERS * ROWS>;
// Double-buffered over iterations: a subgroup that is ahead does not overwrite what others still
// read.
var<workgroup> weights: array<sums_Number, 2u * WEIGHTS>;

// `total` is of the keys whose weights a lane made.
struct Sums {
    largest: array<f32, ROWS>,
    total: array<f32, ROWS>,
    sums: array<vec4<f32>, ROWS * V_VEC4S>,
}

// Compute the weights of a lane's key for all rows, and raise the maxima that its cluster exceeds.
fn weigh(
    state: ptr<function, Sums>, parts: ptr<function, array<f32, ROWS * KEYS>>, powers: array<f32, ROWS>,
    rows: vec3<u32>, position: u32, inside: bool, at: u32, lane: u32,
) {
    var scores: array<f32, ROWS>;
    var highest: array<f32, ROWS>;
    var moves = false;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let score_r = own_score(parts, r, lane) * powers[r];
        scores[r] = select(score_r, capped(score_r) * LOG2_E, CAPPED);
        if ALIBI || BIASED {
            scores[r] += biased(0.0, min(rows.x + r, rows.y - 1u), rows.z, position) * LOG2_E;
        }
        scores[r] = select(MISSING, scores[r], inside);
        highest[r] = largest_across_lanes(scores[r]);
        moves = moves || highest[r] > (*state).largest[r];
    }
    if moves {
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            raise(state, r, highest[r]);
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        scores[r] = exp2(scores[r] - (*state).largest[r]);
        (*state).total[r] += scores[r];
    }
    if KEYS == LANES || lane < KEYS {
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            weights[at + lane * ROWS + r] = sums_Number(scores[r]);
        }
    }
}

// Scale what a row has to a larger maximum, which few positions bring.
fn raise(state: ptr<function, Sums>, r: u32, highest: f32) {
    let larger = max((*state).largest[r], highest);
    let shrink = exp2((*state).largest[r] - larger);
    (*state).largest[r] = larger;
    (*state).total[r] *= shrink;
    // @unroll
    for (var i = 0u; i < V_VEC4S; i++) {
        (*state).sums[r * V_VEC4S + i] *= shrink;
    }
}

// Scales what a cluster has to the largest score of all, and gives each the total of all.
fn join_clusters(state: ptr<function, Sums>, lane: u32, cluster: u32) {
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let total_r = across_lanes(select(0.0, (*state).total[r], lane < KEYS));
        if lane == 0u {
            largest[r * CLUSTERS + cluster] = (*state).largest[r];
            totals[r * CLUSTERS + cluster] = total_r;
        }
    }
    workgroupBarrier();
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        var highest_r = HALF_LOWEST;
        for (var t = 0u; t < CLUSTERS; t++) {
            highest_r = max(highest_r, largest[r * CLUSTERS + t]);
        }
        let shrink_r = exp2((*state).largest[r] - highest_r);
        var total_r = 0.0;
        for (var t = 0u; t < CLUSTERS; t++) {
            total_r += totals[r * CLUSTERS + t] * exp2(largest[r * CLUSTERS + t] - highest_r);
        }
        // @unroll
        for (var i = 0u; i < V_VEC4S; i++) {
            (*state).sums[r * V_VEC4S + i] *= shrink_r;
        }
        (*state).largest[r] = highest_r;
        (*state).total[r] = total_r;
    }
}
