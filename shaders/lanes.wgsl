// y = how many threads of a work group of eight are one subgroup, with the first of them.

@group(0) @binding(0) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(8)
fn main(@builtin(local_invocation_index) lane: u32) {
    let together = subgroupAdd(1u);
    if lane == 0u {
        y[0] = together;
    }
}
