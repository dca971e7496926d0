// What eight neighbouring lanes exchange to round a group of 32 values, through workgroup memory: all
// lanes of the work group call these. The importing file declares `WG`.

struct buf_Totals { all: f32, first: f32, squares: f32 }

var<workgroup> buf_largest: array<u32, WG>;
var<workgroup> buf_sums: array<f32, WG>;
var<workgroup> buf_squares: array<f32, WG>;

fn buf_max(value: u32, lane: u32) -> u32 {
    buf_largest[lane] = value;
    workgroupBarrier();
    var largest = 0u;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        largest = max(largest, buf_largest[lane / 8u * 8u + k]);
    }
    return largest;
}

// Totals of the eight lanes, of the first four, and of squares: right in the first lane.
fn buf_totals(sum: f32, squares: f32, lane: u32) -> buf_Totals {
    workgroupBarrier();  // others may still read squares
    buf_sums[lane] = sum;
    buf_squares[lane] = squares;
    workgroupBarrier();
    var totals = buf_Totals(0.0, 0.0, 0.0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        totals.all += buf_sums[lane / 8u * 8u + k];
        if k == 3u {
            totals.first = totals.all;
        }
        totals.squares += buf_squares[lane / 8u * 8u + k];
    }
    return totals;
}

// Values of the lane four further in the first four lanes, a lane's own in the others.
fn buf_second(values: vec4<f32>, lane: u32) -> vec4<f32> {
    var second: vec4<f32>;
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        workgroupBarrier();
        buf_squares[lane] = values[k];
        workgroupBarrier();
        second[k] = buf_squares[lane | 4u];
    }
    return second;
}
