// Sum and maximum over a work group, through workgroup memory. Every thread gets the result.
// The importing file declares `WG`, a power of two.

var<workgroup> reduce_slots: array<f32, WG>;

fn group_sum(value: f32, lane: u32) -> f32 {
    reduce_slots[lane] = value;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            reduce_slots[lane] += reduce_slots[lane + half];
        }
        workgroupBarrier();
    }
    let total = reduce_slots[0];
    workgroupBarrier();
    return total;
}

fn group_max(value: f32, lane: u32) -> f32 {
    reduce_slots[lane] = value;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            reduce_slots[lane] = max(reduce_slots[lane], reduce_slots[lane + half]);
        }
        workgroupBarrier();
    }
    let largest = reduce_slots[0];
    workgroupBarrier();
    return largest;
}
