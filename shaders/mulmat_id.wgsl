// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k]: each row of x times the expert
// chosen for it. A work group takes ROWS rows of one expert, its lanes stride over k, and a tree
// sums them.
// @import quant/f32 as weights
// @import vec4/f32 as x
// @import chosen/each as ids
// @import lib/expert_task
// @import lib/grid

const WG: u32 = 64u;
const ROWS: u32 = 2u;

struct Params {
    m: u32, groups: u32, experts: u32, used: u32, x_used: u32, row_groups: u32, skipped: u32,
    first_row: u32, weights_rows: u32, x_offset: u32, ids_offset: u32, tiles: u32, pairs: u32,
    bias_offset: u32, ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> partial: array<f32, WG * ROWS>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let task = task_of(group_index(group, groups), ROWS);
    if !task.is_there {
        return;
    }
    let local = task.local;
    let x_at = params.x_offset / 4u + x_row(task.tile) * params.groups * 8u;
    var sums: array<f32, ROWS>;
    for (var g = lane; g < params.groups; g += WG) {
        var values: array<vec4<f32>, 8>;
        for (var r = 0u; r < ROWS; r++) {
            if local + r < params.weights_rows {
                weights_load32((local + r) * params.groups + g, &values);
                var part = vec4<f32>(0.0);
                // @unroll
                for (var k = 0u; k < 8u; k++) {
                    part += values[k] * x_load4(x_at + g * 8u + k);
                }
                sums[r] += part.x + part.y + part.z + part.w;
            }
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        partial[r * WG + lane] = sums[r];
    }
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            for (var r = 0u; r < ROWS; r++) {
                partial[r * WG + lane] += partial[r * WG + lane + half];
            }
        }
        workgroupBarrier();
    }
    if lane < ROWS && task.row + lane < params.m && local + lane < params.weights_rows {
        let row = task.row + lane;
        y[task.tile * params.m + row] = with_bias(partial[lane * WG], task.expert, row);
    }
}
