// y = x, with the logits of tokens of `history` lowered: x > 0 ? x / repeat : x * repeat, then minus
// presence + count * frequency. Each work group copies some columns of a row, then its threads look
// for the tokens of the history that fall among them.
// @import lib/sampling/sampling_params

const WG: u32 = 64u;
const COLUMNS: u32 = 2048u;

struct Params {
    cols: u32, length: u32, zero: u32, x_offset: u32, history_offset: u32, sampling_offset: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> history: array<i32>;
@group(0) @binding(2) var<storage, read> sampling: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

// A product on its way into a sum, rounded as NumPy rounds it: the compiler cannot fuse the two.
fn rounded(value: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(value) | params.zero);
}

fn penalised(value: f32, count: u32, base: u32) -> f32 {
    let factor = select(sampling[base + REPEAT], sampling[base + INVERSE_REPEAT], value > 0.0);
    let often = rounded(f32(count) * sampling[base + FREQUENCY]);
    return rounded(value * factor) - (often + sampling[base + PRESENCE]);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.y * params.cols;
    let source = params.x_offset + row;
    let begin = group.x * COLUMNS;
    let end = min(begin + COLUMNS, params.cols);
    for (var i = begin + lane; i < end; i += WG) {
        y[row + i] = x[source + i];
    }
    storageBarrier();
    let past = params.history_offset + group.y * params.length;
    for (var i = lane; i < params.length; i += WG) {
        // -1, an empty place, becomes a number beyond every column.
        let token = u32(history[past + i]);
        if token < begin || token >= end {
            continue;
        }
        var count = 0u;
        var first = true;
        for (var j = 0u; j < params.length; j++) {
            if u32(history[past + j]) == token {
                count += 1u;
                first = first && j >= i;
            }
        }
        if first {
            let base = params.sampling_offset + group.y * SAMPLING;
            y[row + token] = penalised(x[source + token], count, base);
        }
    }
}
