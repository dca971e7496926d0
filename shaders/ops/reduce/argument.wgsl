// y[output] = where the largest or smallest value of an output is: a work group an output.
// @import lib/reduce/argument
// @import lib/index/grid

const WG: u32 = 64u;

@group(0) @binding(0) var<storage, read_write> y: array<i32>;

var<workgroup> found: array<Best, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups);
    if i >= params.outputs {
        return;
    }
    found[lane] = best_of(i, lane, WG);
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            found[lane] = better(found[lane], found[lane + half]);
        }
        workgroupBarrier();
    }
    if lane == 0u {
        y[i] = i32(found[0].place);
    }
}
