// y[thread] = many independent dot products of packed bytes: little is loaded, so arithmetic is the
// bound.
// @import lib/grid

const WG: u32 = 64u;

struct Params { threads: u32, turns: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<i32>>;
@group(0) @binding(2) var<uniform> params: Params;

fn dots(a: vec4<u32>, b: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(
        dot4I8Packed(a.x, b.x), dot4I8Packed(a.y, b.y), dot4I8Packed(a.z, b.z), dot4I8Packed(a.w, b.w),
    );
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.threads {
        return;
    }
    let turns = params.turns;
    let factor = x[i];
    var a = vec4<i32>(0);
    var b = vec4<i32>(1);
    for (var t = 0u; t < turns; t++) {
        // @unroll
        for (var k = 0u; k < 8u; k++) {
            a += dots(factor, bitcast<vec4<u32>>(b));
            b += dots(factor, bitcast<vec4<u32>>(a));
        }
    }
    y[i] = a + b;
}
