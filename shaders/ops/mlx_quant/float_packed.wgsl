// y = codes of values over their scale, packed from the low bits on: a word a thread.
// @import formats/load/f32 as w
// @import formats/load/u8 as scales
// @import lib/packed/small_floats
// @import lib/index/grid

const WG: u32 = 64u;
const GROUP: u32 = 32u;
const BITS: u32 = 4u;
const VALUES: u32 = 32u / BITS;

struct Params { count: u32, w_offset: u32, scales_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.count {
        return;
    }
    let bits = scales_load(params.scales_offset + i * VALUES / GROUP);
    var scale = from_e8m0(bits);
    if GROUP == 16u {
        scale = from_e4m3(vec4<u32>(bits)).x;
    }
    var word = 0u;
    for (var k = 0u; k < VALUES; k++) {
        var value = 0.0;
        if scale != 0.0 {
            value = w_load(params.w_offset + i * VALUES + k) / scale;
        }
        if BITS == 4u {
            word |= to_e2m1(value) << (k * 4u);
        } else {
            word |= to_e4m3(value) << ((k * 8u) & 31u);
        }
    }
    y[i] = word;
}
