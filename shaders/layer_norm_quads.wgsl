// As layer_norm.wgsl, for rows of whole vectors of four.
// @import vec4/f32 as x
// @import vec4/f32 as weight
// @import vec4/f32 as bias
// @import lib/grid
// @import lib/reduce

const WG: u32 = 64u;
const WEIGHTED: bool = true;
const BIASED: bool = true;

struct Params {
    rows: u32, cols: u32, x_offset: u32, weight_offset: u32, bias_offset: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if row >= params.rows {
        return;
    }
    let quads = params.cols / 4u;
    let start = params.x_offset / 4u + row * quads;
    var sums = vec4<f32>();
    for (var i = lane; i < quads; i += WG) {
        sums += x_load4(start + i);
    }
    let mean = group_sum(dot(sums, vec4<f32>(1.0)), lane) / f32(params.cols);
    var squares = 0.0;
    for (var i = lane; i < quads; i += WG) {
        let differences = x_load4(start + i) - mean;
        squares += dot(differences, differences);
    }
    let inverse = 1.0 / sqrt(group_sum(squares, lane) / f32(params.cols) + params.eps);
    for (var i = lane; i < quads; i += WG) {
        var values = (x_load4(start + i) - mean) * inverse;
        if WEIGHTED {
            values *= weight_load4(params.weight_offset / 4u + i);
        }
        if BIASED {
            values += bias_load4(params.bias_offset / 4u + i);
        }
        y[row * quads + i] = values;
    }
}
