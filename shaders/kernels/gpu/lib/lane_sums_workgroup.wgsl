// Sums of each LANES lanes of a work group, SUMS numbers a lane, through workgroup memory alone: lanes put
// theirs side by side, all lanes add up a part of a sum each, and who reads a sum adds up its parts. The
// importing file declares `WG`, `LANES` and `SUMS` and brings `compute`.

// Rows of one more than the lanes: of two sums the same lane's numbers never meet in a bank.
const buf_PITCH: u32 = WG + 1u;
const buf_PARTS: u32 = max(LANES / SUMS, 1u);
const buf_LENGTH: u32 = (LANES + buf_PARTS - 1u) / buf_PARTS;
const buf_ALL: u32 = SUMS * buf_PARTS;  // parts of sums of the same lanes

var<workgroup> buf_slots: array<f32, SUMS * (WG + 1u)>;
var<workgroup> buf_parts: array<f32, buf_ALL * (WG / LANES)>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    compute(group, groups, lane);
}

// Which LANES lanes of the work group a lane belongs to.
fn buf_block(lane: u32) -> u32 {
    return lane / LANES % (WG / LANES);
}

fn buf_add_up(own: ptr<function, array<f32, SUMS>>, lane: u32) {
    // @unroll
    for (var i = 0u; i < SUMS; i++) {
        buf_slots[i * buf_PITCH + lane] = (*own)[i];
    }
    workgroupBarrier();
    for (var i = lane; i < buf_ALL * (WG / LANES); i += WG) {
        let begin = i / buf_ALL * LANES;
        let first = begin + i % buf_ALL / SUMS * buf_LENGTH;
        let last = min(first + buf_LENGTH, begin + LANES);
        var part = 0.0;
        for (var k = first; k < last; k++) {
            part += buf_slots[i % SUMS * buf_PITCH + k];
        }
        buf_parts[i] = part;
    }
    workgroupBarrier();
}

// The i-th sum of the lanes from `block` · LANES on, once lanes are added up.
fn buf_sum(block: u32, i: u32) -> f32 {
    let first = block * buf_ALL + i;
    var sum = buf_parts[first];
    for (var part = 1u; part < buf_PARTS; part++) {
        sum += buf_parts[first + part * SUMS];
    }
    return sum;
}
