// y[output, part] = reduction of the values of one part of one output: a thread for each, so that
// neighbouring threads read neighbours: values of other outputs, or other parts of the same.
// @import lib/reduce/reduced
// @import lib/index/grid

const WG: u32 = 64u;
const BY_PARTS: bool = false;

@group(0) @binding(0) var<storage, read_write> y: array<reduce_op_Bits>;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.outputs * params.parts {
        return;
    }
    var output = i % params.outputs;
    var part = i / params.outputs;
    if BY_PARTS {
        output = i / params.parts;
        part = i % params.parts;
    }
    y[output * params.parts + part] = reduce_op_bits(reduced(output, part, 0u, 1u), params.divisor);
}
