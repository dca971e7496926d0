// A tile of attention, ROWS queries by POSITIONS keys a lane, for devices whose lanes are a CPU's:
// there, a load costs as much as a dozen multiplications, whether lanes share its index or not, and
// long code takes seconds to compile. For scores each lane has its keys, for values a few columns, so
// each key, value and query that is loaded serves a tile of sums in registers.
//
// Where a subgroup is smaller than the work group, each does the work of all lanes by itself: `lane`
// and `width` are of the subgroup, `column` is of the work group. The importing file has `LOWEST`,
// `q_load4`, `k_load4`, `v_load4`, and `params` with `k_vec4s` and `v_vec4s`.

const WG: u32 = 8u;
const ROWS: u32 = 8u;
const POSITIONS: u32 = 4u;
const LANE_VEC4S: u32 = 2u;      // vec4 of each result that one lane owns

struct Tile {
    largest: array<f32, ROWS>,
    total: array<f32, ROWS>,     // a lane's part
    sums: array<array<vec4<f32>, LANE_VEC4S>, ROWS>,
}

// Query times key for each row and each of a lane's keys, given where they begin; lane r has the
// query of row r, or of row r + width.
fn products(keys: array<u32, POSITIONS>, queries: vec2<u32>, lane: u32, width: u32) -> array<f32, ROWS * POSITIONS> {
    var sums = array<f32, ROWS * POSITIONS>();
    for (var first = 0u; first < params.k_vec4s; first += width) {
        let count = min(width, params.k_vec4s - first);
        var parts = array<vec4<f32>, ROWS>();
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let query_r = of_row(r, width, queries.x, queries.y);
            parts[r] = q_load4(query_r + 4u * (first + min(lane, count - 1u)));
        }
        for (var i = 0u; i < count; i++) {
            var values = array<vec4<f32>, POSITIONS>();
            // @unroll
            for (var p = 0u; p < POSITIONS; p++) {
                values[p] = k_load4(keys[p] + first + i);
            }
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let query_r = subgroupShuffle(parts[r], i);
                // @unroll
                for (var p = 0u; p < POSITIONS; p++) {
                    sums[r * POSITIONS + p] += dot(query_r, values[p]);
                }
            }
        }
    }
    return sums;
}

// Adds values, given where they begin, by their scores; LOWEST counts nothing.
fn add_values(
    tile: ptr<function, Tile>, scores: ptr<function, array<f32, ROWS * POSITIONS>>,
    values: array<u32, POSITIONS>, column: u32, width: u32,
) {
    var highest: array<f32, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        highest[r] = LOWEST;
        // @unroll
        for (var p = 0u; p < POSITIONS; p++) {
            highest[r] = max(highest[r], (*scores)[r * POSITIONS + p]);
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        var most_r = (*tile).largest[r];
        for (var i = 0u; i < width; i++) {
            most_r = max(most_r, subgroupShuffle(highest[r], i));
        }
        highest[r] = most_r;
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let shrink_r = exp((*tile).largest[r] - highest[r]);
        (*tile).largest[r] = highest[r];
        (*tile).total[r] *= shrink_r;
        // @unroll
        for (var n = 0u; n < LANE_VEC4S; n++) {
            (*tile).sums[r][n] *= shrink_r;
        }
        // @unroll
        for (var p = 0u; p < POSITIONS; p++) {
            let score_rp = (*scores)[r * POSITIONS + p];
            let weight_rp = select(exp(score_rp - highest[r]), 0.0, score_rp == LOWEST);
            (*scores)[r * POSITIONS + p] = weight_rp;
            (*tile).total[r] += weight_rp;
        }
    }
    // @unroll
    for (var p = 0u; p < POSITIONS; p++) {
        for (var i = 0u; i < width; i++) {
            let first_p = subgroupShuffle(values[p], i);
            // @unroll
            for (var n = 0u; n < LANE_VEC4S; n++) {
                let value_pn = v_load4(first_p + min(n * WG + column, params.v_vec4s - 1u));
                // @unroll
                for (var r = 0u; r < ROWS; r++) {
                    let weight_rp = subgroupShuffle((*scores)[r * POSITIONS + p], i);
                    (*tile).sums[r][n] += weight_rp * value_pn;
                }
            }
        }
    }
}

fn sum_of_lanes(part: f32, width: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < width; i++) {
        sum += subgroupShuffle(part, i);
    }
    return sum;
}

// What a row's lane holds of it: lane r of row r, or lane r - width where lanes are half as many.
fn of_row(row: u32, width: u32, low: u32, high: u32) -> u32 {
    if row < 4u {
        return subgroupShuffle(low, row);
    }
    return select(subgroupShuffle(high, row - 4u), subgroupShuffle(low, row), width > row);
}
