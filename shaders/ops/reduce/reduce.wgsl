// y[output, part] = reduction of the values of one part of one output: a work group for each.
// @import lib/reduce/reduced
// @import lib/index/grid

const WG: u32 = 64u;

@group(0) @binding(0) var<storage, read_write> y: array<reduce_op_Bits>;

var<workgroup> totals: array<reduce_op_Total, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups);
    if i >= params.outputs * params.parts {
        return;
    }
    totals[lane] = reduced(i / params.parts, i % params.parts, lane, WG);
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            totals[lane] = reduce_op_join(totals[lane], totals[lane + half]);
        }
        workgroupBarrier();
    }
    if lane == 0u {
        y[i] = reduce_op_bits(totals[0], params.divisor);
    }
}
