// y = x, element by element into a dense tensor of another type.
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import formats/convert/same as convert
// @import lib/index/grid
// @import lib/index/strided

alias Value = f32;   // what x is in a register
alias Out = f32;     // and what y is
const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;
const TRUTH: bool = false;
const SIGNED_ZERO: bool = true;

struct Params { size: u32, x_offset: u32, shape: vec4<u32>, x_strides: vec4<u32> }

@group(0) @binding(0) var<uniform> params: Params;

fn out_values(i: u32) -> vec4<Out> {
    let lanes = vec4<u32>(i, i + 1u, i + 2u, i + 3u);
    let at = strided4(i, params.shape, params.x_strides);
    let inside = select(vec4<u32>(0u), at, lanes < vec4<u32>(params.size));
    let value = vec4<Value>(x_gather4(vec4<u32>(params.x_offset) + inside));
    if TRUTH {
        // By its bits: NaN is true, the smallest number is, and zero of either sign is not.
        let bits = bitcast<vec4<u32>>(value);
        let magnitude = bits << vec4<u32>(select(0u, 1u, SIGNED_ZERO));
        return vec4<Out>(magnitude != vec4<u32>(0u));
    }
    return convert_of(value);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            y_store4(i, out_values(i));
        }
    }
}
