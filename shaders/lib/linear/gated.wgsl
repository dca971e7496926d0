// Products of two halves of a weight joined as act(gate) · up: rows 0 to m - 1 are the gate, those
// from m the projection up. A dispatch then has all rows.
// @import lib/gate/silu as gate

const GATED: bool = false;

// Rows of y that a dispatch makes, and the row of the weight that the gate (source 0) or the
// projection (1) takes for one of them.
fn result_rows() -> u32 {
    return select(params.weights_rows, params.m, GATED);
}

fn source_row(row: u32, source: u32) -> u32 {
    return min(row, result_rows() - 1u) + source * params.m;
}

fn joined(first: f32, second: f32) -> f32 {
    if GATED {
        return gate_act(first) * second;
    }
    return first;
}
