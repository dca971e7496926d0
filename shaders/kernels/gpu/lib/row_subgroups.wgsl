// As `lib/reduce/row_workgroup.wgsl` with two barriers in place of many: subgroups reduce their own values, and each then
// reduces what all made of theirs. It holds for any order of a work group's threads in its subgroups.
// The importing file declares `WG`.

var<workgroup> subgroup_slots: array<f32, WG>;

fn buf_lane(lane: u32) -> u32 {
    return lane;
}

fn buf_width() -> u32 {
    return WG;
}

fn buf_sum(value: f32, lane: u32) -> f32 {
    let place = subgroupExclusiveAdd(1u);
    let width = subgroupAdd(1u);
    let part = subgroupAdd(value);
    subgroup_slots[lane] = select(0.0, part, place == 0u);
    workgroupBarrier();
    var sum = 0.0;
    for (var i = place; i < WG; i += width) {
        sum += subgroup_slots[i];
    }
    workgroupBarrier();
    return subgroupAdd(sum);
}

// Every thread shows the maximum of its subgroup, which is as good as one of them.
fn buf_max(value: f32, lane: u32) -> f32 {
    let place = subgroupExclusiveAdd(1u);
    let width = subgroupAdd(1u);
    subgroup_slots[lane] = subgroupMax(value);
    workgroupBarrier();
    var largest = subgroup_slots[lane];
    for (var i = place; i < WG; i += width) {
        largest = max(largest, subgroup_slots[i]);
    }
    workgroupBarrier();
    return subgroupMax(largest);
}
