// Sums of each LANES lanes of a work group, SUMS numbers a lane. Lanes of a subgroup exchange halves of
// their numbers in two steps, after which four lanes in a row have a quarter each, or in three, and add up
// theirs with the other lanes; who reads a sum adds up those of the subgroups. The importing file declares `WG` and
// `LANES`, powers of two, and `SUMS`, and brings `compute`. Subgroups are taken to be lanes in a row, all
// of them filled; of those larger than LANES each LANES lanes count as one.

const buf_QUARTER: u32 = 1u;     // of SUMS, rounded up
// Subgroups are eight lanes or more, QUARTER is even, and SUMS a multiple of eight, or one more.
const buf_EIGHTHS: bool = false;

var<workgroup> buf_slots: array<f32, WG * buf_QUARTER>;
var<private> buf_size: u32;
var<private> buf_whole: bool;  // no subgroup has lanes of two blocks

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_size) size: u32,
) {
    buf_size = min(size, LANES);
    buf_whole = size <= LANES;
    compute(group, groups, lane);
}

// Which LANES lanes of the work group a lane belongs to: uniform over a subgroup where a compiler
// can know that, so that values derived from it are scalars.
fn buf_block(lane: u32) -> u32 {
    let block = lane / LANES % (WG / LANES);
    return select(block, subgroupBroadcastFirst(block), buf_whole);
}

// Of two numbers a lane keeps the one that its bit says, and adds that of a lane whose bit differs.
fn buf_halve(clear: f32, full: f32, lane: u32, bit: u32, partner: u32) -> f32 {
    let keeps_full = (lane & bit) != 0u;
    return select(clear, full, keeps_full) + subgroupShuffleXor(select(full, clear, keeps_full), partner);
}

// Shuffles that are too wide for a subgroup are executed, too, and their results ignored: WGSL
// defines shuffles in uniform control flow only, and does not treat the size of a subgroup as
// uniform. A compiler that knows the size removes them.
fn buf_all(own: f32) -> f32 {
    var sum = own;
    // @unroll
    for (var i = 2u; i < 7u; i++) {
        if i > 2u || !buf_EIGHTHS {
            let bit_i = 1u << i;
            sum += select(0.0, subgroupShuffleXor(sum, bit_i), buf_size > bit_i);
        }
    }
    return sum;
}

// Of four numbers a lane has the one that its two lowest bits say, of four lanes.
fn buf_of_four(numbers: vec4<f32>, lane: u32) -> f32 {
    let first = buf_halve(numbers.x, numbers.y, lane, 1u, 1u);
    let second = buf_halve(numbers.z, numbers.w, lane, 1u, 1u);
    return buf_halve(first, second, lane, 2u, 2u);
}

// Of eight the one that its three lowest bits say, of eight lanes. Lanes have all eight at first, and
// may add those of the one mirrored in its eight, as the compilers of some GPUs do without a shuffle.
fn buf_of_eight(low: vec4<f32>, high: vec4<f32>, lane: u32) -> f32 {
    let x = buf_halve(low.x, high.x, lane, 4u, 7u);
    let y = buf_halve(low.y, high.y, lane, 4u, 7u);
    let z = buf_halve(low.z, high.z, lane, 4u, 7u);
    let w = buf_halve(low.w, high.w, lane, 4u, 7u);
    return buf_halve(buf_halve(x, z, lane, 2u, 2u), buf_halve(y, w, lane, 2u, 2u), lane, 1u, 1u);
}

// A number of each of eight lanes, which all of them get.
fn buf_of_eight_lanes(own: f32) -> f32 {
    var sum = own + subgroupShuffleXor(own, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    return sum + subgroupShuffleXor(sum, 7u);
}

fn buf_add_up(own: ptr<function, array<f32, SUMS>>, lane: u32) {
    var padded: array<f32, 4u * buf_QUARTER>;
    // @unroll
    for (var i = 0u; i < SUMS; i++) {
        padded[i] = (*own)[i];
    }
    let place = lane % buf_size;
    let first = lane / buf_size * 4u * buf_QUARTER + place;
    var sums: array<f32, buf_QUARTER>;
    // @unroll
    for (var i = 0u; i < buf_QUARTER; i++) {
        let four_i = vec4<f32>(padded[4u * i], padded[4u * i + 1u], padded[4u * i + 2u], padded[4u * i + 3u]);
        if !buf_EIGHTHS {
            sums[i] = buf_all(buf_of_four(four_i, lane));
        } else if i % 2u == 0u && 4u * i + 1u == SUMS {
            sums[i] = buf_all(buf_of_eight_lanes(four_i.x));
        } else if i % 2u == 0u {
            let next_i = min(4u * i + 4u, 4u * buf_QUARTER - 4u);
            let high_i = vec4<f32>(padded[next_i], padded[next_i + 1u], padded[next_i + 2u], padded[next_i + 3u]);
            sums[i] = buf_all(buf_of_eight(four_i, high_i, lane));
        }
    }
    if place < select(4u, 8u, buf_EIGHTHS) {
        // @unroll
        for (var i = 0u; i < buf_QUARTER; i++) {
            if !buf_EIGHTHS || i % 2u == 0u {
                buf_slots[first + 4u * i] = sums[i];
            }
        }
    }
    workgroupBarrier();
}

// The i-th sum of the lanes from `block` · LANES on, once lanes are added up.
fn buf_sum(block: u32, i: u32) -> f32 {
    let subgroups = LANES / buf_size;
    let first = block * subgroups * 4u * buf_QUARTER + i;
    var sum = buf_slots[first];
    for (var s = 1u; s < subgroups; s++) {
        sum += buf_slots[first + s * 4u * buf_QUARTER];
    }
    return sum;
}
