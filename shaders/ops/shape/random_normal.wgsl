// y = normally distributed numbers: Threefry-2x32 over a counter, then Box–Muller in pairs.
// @import formats/store/f32 as y
// @import lib/index/grid
// @import lib/rope/sine
// @import lib/random/threefry

const WG: u32 = 64u;

struct Params { size: u32, key_low: u32, key_high: u32, loc: f32, scale: f32 }

@group(0) @binding(0) var<uniform> params: Params;

// 24 bits each; the first never zero, so its logarithm is finite.
fn pair(counter: u32) -> vec2<f32> {
    let key = vec2<u32>(params.key_low, params.key_high);
    let bits = threefry(key, vec2<u32>(counter, 0u)) >> vec2<u32>(8u);
    let u = f32(bits.x) * 5.9604645e-8 + 2.9802322e-8;
    let angle = f32(bits.y) * 5.9604645e-8 * 6.2831855;
    let turned = sine(vec4<f32>(angle), 0u).x;
    return sqrt(-2.0 * log(u)) * vec2<f32>(sine(vec4<f32>(angle), 1u).x, turned);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        let values = vec4<f32>(pair(i / 2u), pair(i / 2u + 1u));
        y_store4(i, values * params.scale + params.loc);
    }
}
