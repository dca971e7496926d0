// y[row, part, :] = ids of the `k` largest values of one part of a row, largest first, of equal ones
// the lower id; -1 where the part has fewer. One work group a part.
//
// The k-th largest of the maxima of 2 k subsets is a bound that at least k values reach, and few
// more: these go to workgroup memory and are sorted there. Should more reach it than fit (equal
// values, or an adversarial order), the exact bound is found bit by bit over the whole part.
// @import lib/index/grid

const WG: u32 = 64u;
const GATHERED: bool = false;
const PLACES: u32 = 1024u;
const NO_LIMIT: u32 = 0xffffffffu;

struct Params {
    cols: u32, k: u32, length: u32, part: u32, parts: u32, x_offset: u32, ids_offset: u32,
}

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

var<workgroup> keys: array<u32, PLACES>;
var<workgroup> places: array<u32, PLACES>;
var<workgroup> counts: array<u32, WG>;
var<workgroup> total: u32;
var<workgroup> used: atomic<u32>;

// Where the part of this work group lies.
var<private> row: u32;
var<private> begin: u32;
var<private> size: u32;

fn id_of(i: u32) -> u32 {
    if GATHERED {
        return u32(ids[begin + i]);
    }
    return begin + i;
}

// Orders as the values do, NaN above all and an empty place, 0, below; ±0 are equal.
fn key_of(id: u32) -> u32 {
    let bits = x[row + select(id, min(id, params.cols - 1u), GATHERED)];
    let magnitude = bits & 0x7fffffffu;
    let ordered = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    let key = select(ordered, 0xffffffffu, magnitude > 0x7f800000u);
    return select(key, 0u, GATHERED && id >= params.cols);
}

fn summed(mine: u32, lane: u32) -> u32 {
    counts[lane] = mine;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            counts[lane] += counts[lane + half];
        }
        workgroupBarrier();
    }
    if lane == 0u {
        total = counts[0];
    }
    return workgroupUniformLoad(&total);
}

fn larger_than(bound: u32, lane: u32) -> u32 {
    var mine = 0u;
    for (var i = lane; i < size; i += WG) {
        mine += u32(key_of(id_of(i)) > bound);
    }
    return summed(mine, lane);
}

// The largest bound that at least k keys of the part reach.
fn bound_of_part(lane: u32) -> u32 {
    var bound = 0u;
    for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
        let trial = bound | bit;
        var mine = 0u;
        for (var i = lane; i < size; i += WG) {
            mine += u32(key_of(id_of(i)) >= trial);
        }
        if summed(mine, lane) >= params.k {
            bound = trial;
        }
    }
    return bound;
}

// Ids below this, of keys equal to the bound, fill up what larger keys leave of k.
fn limit_of_ties(bound: u32, lane: u32) -> u32 {
    let wanted = params.k - larger_than(bound, lane);
    var limit = 0u;
    for (var bit = 1u << firstLeadingBit(params.cols); bit > 0u; bit >>= 1u) {
        let trial = limit | bit;
        var mine = 0u;
        for (var i = lane; i < size; i += WG) {
            let id = id_of(i);
            mine += u32(id < trial && key_of(id) == bound);
        }
        if summed(mine, lane) <= wanted {
            limit = trial;
        }
    }
    return limit;
}

// The k-th largest among the maxima of the subsets i % count.
fn bound_of_maxima(count: u32, lane: u32) -> u32 {
    for (var subset = lane; subset < count; subset += WG) {
        var largest = 0u;
        for (var i = subset; i < size; i += count) {
            largest = max(largest, key_of(id_of(i)));
        }
        keys[subset] = largest;
        places[subset] = subset;
    }
    sort(count, lane);
    if lane == 0u {
        total = keys[params.k - 1u];
    }
    return workgroupUniformLoad(&total);
}

// Put what reaches the bound into workgroup memory, as far as it fits; return how much there is.
fn collect(bound: u32, limit: u32, lane: u32) -> u32 {
    if lane == 0u {
        atomicStore(&used, 0u);
    }
    workgroupBarrier();
    for (var i = lane; i < size; i += WG) {
        let id = id_of(i);
        let key = key_of(id);
        if key > bound || (key == bound && id < limit) {
            let place = atomicAdd(&used, 1u);
            if place < PLACES {
                keys[place] = key;
                places[place] = id;
            }
        }
    }
    workgroupBarrier();
    if lane == 0u {
        total = atomicLoad(&used);
    }
    return workgroupUniformLoad(&total);
}

fn comes_before(i: u32, j: u32) -> bool {
    return keys[i] > keys[j] || (keys[i] == keys[j] && places[i] < places[j]);
}

// Bitonic sort (Batcher 1968) of what was collected, filled up to a power of two with empty places: in
// as many iterations for all threads, without which D3D12's compiler refuses the barriers that follow.
fn sort(count: u32, lane: u32) {
    var span = 1u;
    while span < count {
        span *= 2u;
    }
    for (var first = count; first < span; first += WG) {
        if first + lane < span {
            keys[first + lane] = 0u;
            places[first + lane] = NO_LIMIT;
        }
    }
    workgroupBarrier();
    for (var block = 2u; block <= span; block *= 2u) {
        for (var step = block / 2u; step > 0u; step /= 2u) {
            for (var pair = lane; pair < span / 2u; pair += WG) {
                let i = 2u * pair - pair % step;
                if comes_before(i + step, i) == ((i & block) == 0u) {
                    swap(i, i + step);
                }
            }
            workgroupBarrier();
        }
    }
}

fn swap(i: u32, j: u32) {
    let key = keys[i];
    let place = places[i];
    keys[i] = keys[j];
    places[i] = places[j];
    keys[j] = key;
    places[j] = place;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    row = params.x_offset + group.y * params.cols;
    begin = group.x * params.part;
    size = min(params.part, params.length - begin);
    if GATHERED {
        begin += params.ids_offset + group.y * params.length;
    }
    // Key 0 is an empty place: a bound of 1 keeps those out where there are fewer than k values.
    var bound = max(bound_of_maxima(max(2u * params.k, WG), lane), 1u);
    var count = collect(bound, NO_LIMIT, lane);
    if count > PLACES {
        // The bound is exact already where what is too much are values equal to it.
        if larger_than(bound, lane) >= params.k {
            bound = bound_of_part(lane);
        }
        count = collect(bound, limit_of_ties(bound, lane), lane);
    }
    let out = (group.y * params.parts + group.x) * params.k;
    sort(count, lane);
    for (var i = lane; i < params.k; i += WG) {
        y[out + i] = select(-1, i32(places[i]), i < count);
    }
}
