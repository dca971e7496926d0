// Scan of a matrix of states for each head, token by token. A work group takes a tile of columns of a
// head for one run of tokens; PARTS threads share a column, and each keeps VEC4S
// vectors of its states in registers over all tokens. What a token brings for all columns, STAGED
// vectors as long as a column, comes through workgroup memory, the next token's while this one's
// is used.
//
// The importing file brings `Params` and its operands, and
//   fn fetch(vector: u32, token: u32, head: u32, row: u32) -> vec4<f32>    four rows of a vector
//   fn fetch_own(token: u32, head: u32, column: u32) -> vec2<f32>          what a column has alone
//   fn begin(head: u32, column: u32, row: u32)                             before the first token
//   fn advance(staged: u32, own: vec2<f32>, lane: u32) -> f32              a token: a part of y

// @import lib/index/grid
// @import lib/recurrent/runs

const WG: u32 = 128u;     // PARTS * COLS
const COLS: u32 = 32u;
const PARTS: u32 = 4u;
const VEC4S: u32 = 8u;
const LENGTH: u32 = 32u;  // PARTS * VEC4S, vectors of four in a column
const STAGED: u32 = 3u;
const WORK: u32 = 96u;    // STAGED * LENGTH
const FETCHES: u32 = 1u;  // of a thread for a token

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read_write> state: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

var<workgroup> staged: array<vec4<f32>, 2u * WORK>;
var<workgroup> partial: array<f32, 3u * WG>;
var<private> states: array<vec4<f32>, VEC4S>;
var<private> fetched: array<vec4<f32>, FETCHES>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group_index(group, groups);
    if index >= params.groups {
        return;
    }
    let head = (index / params.column_tiles) % params.heads;
    let run = run_at(index / params.column_tiles / params.heads);
    let column = (index % params.column_tiles) * COLS + lane % COLS;
    let inside = column < params.cols;
    let row = (lane / COLS) * VEC4S * 4u;
    begin(head, min(column, params.cols - 1u), row);
    if run.first < run.end {
        load_state(run.source, head, column, row);
        fetch_all(run.first, head, lane);
        put_all(0u, lane);
        var own = fetch_own(run.first, head, min(column, params.cols - 1u));
        var buffer = 0u;
        workgroupBarrier();
        for (var token = run.first; token < run.end; token++) {
            let next = min(token + 1u, run.end - 1u);
            fetch_all(next, head, lane);
            let next_own = fetch_own(next, head, min(column, params.cols - 1u));
            let part = advance(buffer * WORK, own, lane);
            put_all(1u - buffer, lane);
            // After a barrier: some may still add up what they had of the token before.
            let sum = column_sum(part, buffer, lane);
            if inside && lane < COLS {
                y[(token * params.heads + head) * params.cols + column] = sum;
            }
            own = next_own;
            buffer = 1u - buffer;
        }
        save(run.target_slot, head, column, row);
    }
    if run.last && inside && lane < COLS {
        for (var token = run.end; token < params.tokens; token++) {
            y[(token * params.heads + head) * params.cols + column] = 0.0;
        }
    }
}

// Sum over the threads of a column; all of the work group call it.
fn column_sum(part: f32, buffer: u32, lane: u32) -> f32 {
    partial[buffer * WG + lane] = part;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < PARTS; i++) {
        sum += partial[buffer * WG + i * COLS + lane % COLS];
    }
    return sum;
}

fn fetch_all(token: u32, head: u32, lane: u32) {
    // @unroll
    for (var i = 0u; i < FETCHES; i++) {
        let at_i = min(i * WG + lane, WORK - 1u);
        fetched[i] = fetch(at_i / LENGTH, token, head, (at_i % LENGTH) * 4u);
    }
}

fn put_all(buffer: u32, lane: u32) {
    // @unroll
    for (var i = 0u; i < FETCHES; i++) {
        if i * WG + lane < WORK {
            staged[buffer * WORK + i * WG + lane] = fetched[i];
        }
    }
}

// Four rows of a vector, or its last one in the place of those beyond; these are zero in the end.
fn rows_at(row: u32) -> vec4<u32> {
    return min(row + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.rows - 1u));
}

fn there(row: u32, values: vec4<f32>) -> vec4<f32> {
    let rows = row + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(), values, rows < vec4<u32>(params.rows));
}

// Where a thread's first state lies.
fn place(slot: u32, head: u32, column: u32, row: u32) -> u32 {
    return params.state_offset
        + ((slot * params.heads + head) * params.rows + row) * params.cols + column;
}

fn load_state(slot: i32, head: u32, column: u32, row: u32) {
    let from_slot = place(u32(max(slot, 0)), head, column, row);
    let count = select(0u, params.rows, slot >= 0 && column < params.cols);
    // @unroll
    for (var i = 0u; i < VEC4S; i++) {
        // @unroll
        for (var j = 0u; j < 4u; j++) {
            states[i][j] = 0.0;
            if row + 4u * i + j < count {
                states[i][j] = state[from_slot + (4u * i + j) * params.cols];
            }
        }
    }
}

fn save(slot: i32, head: u32, column: u32, row: u32) {
    let to_slot = place(u32(max(slot, 0)), head, column, row);
    let count = select(0u, params.rows, slot >= 0 && column < params.cols);
    if row < count {
        // @unroll
        for (var i = 0u; i < VEC4S; i++) {
            // @unroll
            for (var j = 0u; j < 4u; j++) {
                if row + 4u * i + j < count {
                    state[to_slot + (4u * i + j) * params.cols] = states[i][j];
                }
            }
        }
    }
}
