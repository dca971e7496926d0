// y[t, c] = Σ_k x[t - taps + 1 + k, c] · weight[c, k] + bias[c], and its silu where ACTIVATED: each
// channel's kernel slides over the values of its own run, behind those that `state` has from before.
// A thread takes a channel of a run; BLOCK values are loaded at once. A SHIFT gives each value's
// predecessor: two taps, 1 and 0.
// @import formats/load/f32 as x
// @import formats/load/f32 as weight
// @import formats/load/f32 as bias
// @import lib/index/grid
// @import lib/recurrent/runs

const WG: u32 = 64u;
const TAPS: u32 = 4u;
const BEFORE: u32 = 3u;  // TAPS - 1
const BIASED: bool = false;
const ACTIVATED: bool = false;
const SHIFT: bool = false;
const BLOCK: u32 = 8u;

struct Params {
    size: u32, channels: u32, sequences: u32, tokens: u32, slots: u32, state_offset: u32,
    runs_offset: u32, x_offset: u32, weight_offset: u32, bias_offset: u32,
    x_strides: vec4<u32>, weight_strides: vec4<u32>, bias_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read_write> state: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let channel = i % params.channels;
    let run = run_at(i / params.channels);
    var seen: array<f32, TAPS>;
    var taps: array<f32, TAPS>;
    // @unroll
    for (var k = 0u; k < TAPS; k++) {
        taps[k] = tap(channel, k);
    }
    if run.source >= 0 {
        // @unroll
        for (var k = 0u; k < BEFORE; k++) {
            seen[k + 1u] = state[place(run.source, k, channel)];
        }
    }
    var bias = 0.0;
    if BIASED {
        bias = bias_load(params.bias_offset + channel * params.bias_strides.w);
    }
    for (var token = run.first; token < run.end; token += BLOCK) {
        var block = array<f32, BLOCK>();
        // @unroll
        for (var j = 0u; j < BLOCK; j++) {
            let at = min(token + j, run.end - 1u) * params.x_strides.z + channel * params.x_strides.w;
            block[j] = x_load(params.x_offset + at);
        }
        // @unroll
        for (var j = 0u; j < BLOCK; j++) {
            if token + j < run.end {
                var sum = bias;
                // @unroll
                for (var k = 0u; k < BEFORE; k++) {
                    seen[k] = seen[k + 1u];
                    sum += seen[k] * taps[k];
                }
                seen[BEFORE] = block[j];
                sum += seen[BEFORE] * taps[BEFORE];
                y[(token + j) * params.channels + channel] = activated(sum);
            }
        }
    }
    if run.first < run.end && run.target_slot >= 0 {
        // @unroll
        for (var k = 0u; k < BEFORE; k++) {
            state[place(run.target_slot, k, channel)] = seen[k + 1u];
        }
    }
    if run.last {
        for (var token = run.end; token < params.tokens; token++) {
            y[token * params.channels + channel] = 0.0;
        }
    }
}

fn tap(channel: u32, k: u32) -> f32 {
    if SHIFT {
        return select(0.0, 1.0, k == 0u);
    }
    let at = channel * params.weight_strides.z + k * params.weight_strides.w;
    return weight_load(params.weight_offset + at);
}

fn place(slot: i32, k: u32, channel: u32) -> u32 {
    return params.state_offset + (u32(slot) * BEFORE + k) * params.channels + channel;
}

fn activated(value: f32) -> f32 {
    if ACTIVATED {
        return value / (1.0 + exp(-value));
    }
    return value;
}
