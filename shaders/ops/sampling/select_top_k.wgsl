// y[row, :] = columns of the k largest values of a row, in the order of columns: a work group a row.
// The k-th largest key is found digit by digit, by how often each digit occurs among the keys that
// agree with it so far. Of keys equal to it the first are taken.
// @import lib/index/group_row
// @import lib/sort/key_at

struct Params { rows: u32, cols: u32, k: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<i32>;

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> larger: array<u32, WG>;
var<workgroup> equal: array<u32, WG>;
// Digits of the k-th key that are known, and how many of the keys that agree with it are to be taken.
struct Bound { key: u32, wanted: u32 }
var<workgroup> found: Bound;

fn group_row(row: u32, lane: u32) {
    let start = params.x_offset + row * params.cols;
    var bound = Bound(0u, params.k);
    for (var shift = 24i; shift >= 0i; shift -= 8i) {
        bound = with_digit(bound, u32(shift), start, lane);
    }
    put(bound, start, row * params.k, lane);
}

fn with_digit(bound: Bound, shift: u32, start: u32, lane: u32) -> Bound {
    for (var d = lane; d < 256u; d += WG) {
        atomicStore(&counts[d], 0u);
    }
    workgroupBarrier();
    for (var i = lane; i < params.cols; i += WG) {
        let key = key_at(start + i);
        if ((key ^ bound.key) >> shift) < 256u {
            atomicAdd(&counts[(key >> shift) & 255u], 1u);
        }
    }
    workgroupBarrier();
    if lane == 0u {
        var wanted = bound.wanted;
        var d = 255u;
        while wanted > atomicLoad(&counts[d]) {
            wanted -= atomicLoad(&counts[d]);
            d -= 1u;
        }
        found = Bound(bound.key | (d << shift), wanted);
    }
    return workgroupUniformLoad(&found);
}

// Each thread goes through neighbouring columns, and counts first what those before it put.
fn put(bound: Bound, start: u32, out: u32, lane: u32) {
    let each = (params.cols + WG - 1u) / WG;
    let first = min(lane * each, params.cols);
    let end = min(first + each, params.cols);
    var counted = vec2<u32>();
    for (var i = first; i < end; i++) {
        let key = key_at(start + i);
        counted += vec2<u32>(u32(key > bound.key), u32(key == bound.key));
    }
    larger[lane] = counted.x;
    equal[lane] = counted.y;
    workgroupBarrier();
    var before = vec2<u32>();
    for (var i = 0u; i < lane; i++) {
        before += vec2<u32>(larger[i], equal[i]);
    }
    for (var i = first; i < end; i++) {
        let key = key_at(start + i);
        if key > bound.key || (key == bound.key && before.y < bound.wanted) {
            y[out + before.x + min(before.y, bound.wanted)] = i32(i);
        }
        before += vec2<u32>(u32(key > bound.key), u32(key == bound.key));
    }
}
