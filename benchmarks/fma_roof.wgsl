// y[thread] = many independent multiply-adds of vectors: little is loaded, so arithmetic is the bound.
// @import lib/grid

const WG: u32 = 64u;

struct Params { threads: u32, turns: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.threads {
        return;
    }
    let turns = params.turns;
    let factor = x[i];
    var a = factor;
    var b = factor + 1.0;
    var c = factor + 2.0;
    var d = factor + 3.0;
    for (var t = 0u; t < turns; t++) {
        // @unroll
        for (var k = 0u; k < 4u; k++) {
            a = a * factor + b;
            b = b * factor + c;
            c = c * factor + d;
            d = d * factor + a;
        }
    }
    y[i] = a + b + c + d;
}
